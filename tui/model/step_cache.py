"""Caches the newest steps of a run for curves and figures, and builds the query that completes them.

Invariants:
- No step between the oldest and the newest cached one is missing, even after a long time without queries.
- The cache has at most `most` steps.
- A step that may still change is queried again.
- At the first step of a new lineage all steps are queried again, because it may have rolled back committed steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tui.model.curves import Point, points

Row = Mapping[str, Any]
MOST = 1000
"""The size of one answer."""
NEWEST_FIRST = "-leased_at"
"""The order of the query."""
_LEASED = "leased"


class StepCache:
    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.rows: list[Row] = []
        """The newest first."""
        self.points: list[Point] = []
        """Committed steps, the oldest first."""
        self.more = False
        """Whether the run has older steps."""
        self._read_all = True

    def question(self) -> str:
        """The filter of new and changed steps; an empty string for all."""
        at = None if self._read_all else self._settled_until()
        return f"leased_at>={_spelled(at)}" if at is not None else ""

    def take(self, question: str, rows: Iterable[Row], *, more: bool) -> None:
        """Take the answer to a query, the newest first; `more` if it was cut off after `most`."""
        answer = list(rows)
        unseen = {row.get("lineage") for row in answer} - {row.get("lineage") for row in self.rows}
        # A cut answer may leave a gap before the cached steps.
        whole = not question or more
        self._read_all = bool(unseen) and bool(self.rows) and not whole
        if whole:
            self.more, merged = more, answer
        else:
            new = {row["id"] for row in answer}
            merged = [*answer, *(row for row in self.rows if row["id"] not in new)]
        self.more |= len(merged) > self.most
        if merged[: self.most] != self.rows:
            self.rows = merged[: self.most]
            self.points = points(self.rows)

    def _settled_until(self) -> datetime | None:
        """The lease time of the oldest step that may still change; else of the newest."""
        open = [row for row in self.rows if row.get("status") == _LEASED] or self.rows[:1]
        at = open[-1].get("leased_at") if open else None
        return at if isinstance(at, datetime) else None


def _spelled(at: datetime) -> str:
    """A time in the filter language; times of the store are in UTC, with or without a time zone."""
    return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
