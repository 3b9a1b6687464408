"""Arguments and results of the query on other models: their calls and costs, and whether their services answer now.

Invariant: rows contain no keys, questions or answers.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from agentrl.protocol.message_base import Args
from agentrl.protocol.words import PROGRAM, option


class OtherModels(Args, frozen=True):
    """-> OtherModelsReport"""

    record: str = ""
    """Only the calls that were made for this record."""
    failed: bool = False
    """Only calls with an error."""
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 20
    model: str = ""
    """Only the calls of this model."""
    purpose: Annotated[str, PROGRAM] = ""
    """Only the calls for this purpose."""


class ServiceRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One service of a model: its entry in the run file, and how it answers samplers."""

    model: str
    place: int
    """Services are asked in this order, from 1."""
    service: str
    """`large at api.example.com`"""
    kind: str = ""
    per_minute: int = 0
    """Calls a minute of all samplers together; 0: no limit."""
    this_minute: int = 0
    """Calls in this minute, if there is a limit. Those beyond it were not made."""
    at_once: int = 0
    """Calls at the same time of each sampler."""
    timeout_s: float = 0.0
    price_in: float = 0.0
    """The price of a million tokens; so is the next field."""
    price_out: float = 0.0
    failing_at: tuple[str, ...] = ()
    """Samplers whose last try failed."""
    failures: int = 0
    """The failures in a row at the sampler with the most of them."""
    rests_until: float = 0.0
    """No sampler that it failed asks it before this time; 0 if one of them may ask it now, or none failed."""
    error: str = ""
    """The error of the last failed try."""
    failed_at: float = 0.0


class OtherModelsReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What other models than the trained one did: judges, users, summaries."""

    usage: tuple[dict[str, Any], ...] = ()
    """Sums by model and purpose, the most expensive first."""
    calls: tuple[dict[str, Any], ...] = ()
    """The newest first."""
    services: tuple[ServiceRow, ...] = ()
    """By model, in the order in which its services are asked."""
    used_by: dict[str, tuple[str, ...]] = {}
    """Judges and summaries by the model that they ask."""
    counted_at: float = 0.0


QUERIES: tuple[tuple[str, type[Args], Any, str, str], ...] = (
    (
        "other_models",
        OtherModels,
        OtherModelsReport,
        "models",
        "Judges and other helpers: calls, tokens, cost, services.",
    ),
)
"""The queries of the table of commands that are about other models."""
