"""How host agents come into being.

Invariants: a backend only starts and releases agents; what runs under an agent is never its business, so an agent
behaves alike wherever it was placed. Starting is idempotent: an agent that lives is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Placed(msgspec.Struct, frozen=True):
    """One host agent, as its backend sees it."""

    host: str
    where: str
    """In the backend's own words: a pid here, a job step or a pod elsewhere."""
    alive: bool


class Placement(Protocol):
    """What a backend must be able to do. A cluster may take long: these calls block, so use a thread."""

    def ensure(self, hosts: Sequence[str]) -> tuple[Placed, ...]:
        """Start the agents of these hosts that do not live. Raises AgentrlError if one cannot be started."""

    def release(self, hosts: Sequence[str]) -> None:
        """Give the hosts back. Their agents have ended, or are ended; their units must have ended before."""

    def describe(self) -> tuple[Placed, ...]:
        """All agents that this backend ever started, living or not."""
