"""Logs each question to another model; an equal question later gets the stored answer.

Invariants: a call is one row, however many services it took; a row has no key; an answer that is too long to keep is
not found again; rows beyond the limits of age and number are removed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from datetime import UTC, datetime
from typing import Protocol

import msgspec

LONGEST_KEPT = 64 << 10
"""Characters of an answer."""
KEPT = 100_000
"""Rows."""


class OtherModelCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One question to another model."""

    id: str = msgspec.field(name="_id")
    record: str = ""
    """The record for which it was asked; empty if there is none."""
    purpose: str = ""
    """Such as `judge right`, `user`, `summary of search`."""
    model: str = ""
    """Its name in `models`."""
    service: str = ""
    """The service that answered."""
    request: str = ""
    """The hash of the question."""
    at: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    latency_s: float = 0.0
    tries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    outcome: str = ""
    """`ok`, `kept` (an earlier answer), `away` or `refused`."""
    error: str = ""
    answer: str = ""


class Ledger(Protocol):
    async def find(self, request: str) -> str | None:
        """The answer to an earlier question with this hash."""

    async def keep(self, call: OtherModelCall) -> None:
        """Never raises: the call has happened even if its row cannot be stored."""

    async def admitted(self, service: str, minute: int, most: int) -> bool:
        """Whether one more call of this minute is within the limit; it is counted if so."""

    async def rests(self, service: str, failures: int, rest_s: float, error: str) -> None:
        """Note that a service failed, and how many times in a row; it is not asked for a while. Never raises."""

    async def works(self, service: str) -> None:
        """Note that the service answers again. Never raises."""


class MemoryLedger:
    """For programs without a database."""

    def __init__(self) -> None:
        self.calls: list[OtherModelCall] = []
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._minutes: Counter[tuple[str, int]] = Counter()

    async def find(self, request: str) -> str | None:
        return self._answers.get(request)

    async def keep(self, call: OtherModelCall) -> None:
        self.calls.append(call)
        if call.outcome == "ok" and len(call.answer) <= LONGEST_KEPT:
            self._answers[call.request] = call.answer
        if len(self._answers) > KEPT:
            self._answers.popitem(last=False)
        del self.calls[:-KEPT]

    async def admitted(self, service: str, minute: int, most: int) -> bool:
        self._minutes[service, minute] += 1
        return self._minutes[service, minute] <= most

    async def rests(self, service: str, failures: int, rest_s: float, error: str) -> None:
        """Does nothing: the only process already knows."""

    async def works(self, service: str) -> None:
        """As above."""
