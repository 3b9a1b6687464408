"""When a service that failed is asked again. Pure: the caller gives the time and the random number.

Invariants: after a failure a service is not asked for a while; the pause grows with the failures in a row, up to
`MOST_S`; a pause that the service asks for is respected within limits; one success resets the count.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

FIRST_S = 0.5
MOST_S = 30.0
MOST_ASKED_FOR_S = 300.0
"""A longer Retry-After is cut to this, because the service may be repaired earlier."""
JITTER = 0.25

Verdict = Literal["busy", "away", "refused"]
"""`refused`: this service would refuse the same question again."""


def of_status(status: int) -> Verdict:
    """What a status other than 200 means. A wrong key or name is `away`, because a person can repair it."""
    if status == 429:
        return "busy"
    return "refused" if status in (400, 413, 414, 422) else "away"


def asked_for_s(retry_after: str, now: datetime) -> float | None:
    """The seconds of a Retry-After header; None if it cannot be read."""
    text = retry_after.strip()
    if text.replace(".", "", 1).isdecimal() and text.isascii():
        return min(float(text), MOST_ASKED_FOR_S)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max((at - now).total_seconds(), 0.0), MOST_ASKED_FOR_S)


@dataclass(slots=True)
class Health:
    """Whether one service may be asked now."""

    failures: int = 0
    """In a row."""
    not_before: float = 0.0

    def failed(self, now: float, chance: float, asked_for: float | None = None) -> None:
        """`chance` is between 0 and 1."""
        pause = min(FIRST_S * 2**self.failures, MOST_S) * (1 + JITTER * (2 * chance - 1))
        self.failures = min(self.failures + 1, 30)
        self.not_before = max(self.not_before, now + max(pause, asked_for or 0.0))

    def worked(self) -> None:
        self.failures, self.not_before = 0, 0.0
