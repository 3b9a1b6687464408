"""What is kept of each question to another model, and found again instead of asking twice.

Invariants: a call is one row, whatever services it took; a row has no key; an answer that is too long to keep is not
found again; what is older or beyond the limit goes.
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
    """For whose sake; empty if it is for none."""
    purpose: str = ""
    """Such as `judge right`, `user`, `summary of search`."""
    model: str = ""
    """Its name in `models`."""
    service: str = ""
    """What answered."""
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
        """Never raises: a call that is not kept has happened all the same."""

    async def admitted(self, service: str, minute: int, most: int) -> bool:
        """Whether one more call of this minute is within the limit; it is counted if so."""

    async def rests(self, service: str, failures: int, rest_s: float, error: str) -> None:
        """A try failed, the last of so many in a row; the service is not asked for a while. Never raises."""

    async def works(self, service: str) -> None:
        """It answers again. Never raises."""


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
        """One process needs no note of what it knows."""

    async def works(self, service: str) -> None:
        """As above."""
