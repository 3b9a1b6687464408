"""The newest Steps of a run, for curves and figures: what is known of them, and what has to be asked for.

Invariants: between the oldest and the newest Step that is known none is missing, however long nobody looked; there are
at most `most`; a Step that may still change is asked for again, and all of them at the first one of a lineage, which
may have rolled back what was known as committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tui.model.curves import Point, points

Row = Mapping[str, Any]
MOST = 1000
"""One answer has as many."""
NEWEST_FIRST = "-leased_at"
"""The order in which they are asked for."""
_LEASED = "leased"


class StepCache:
    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.rows: list[Row] = []
        """The newest first."""
        self.points: list[Point] = []
        """Those that count, the oldest first."""
        self.more = False
        """Whether there are older ones."""
        self._all_anew = True

    def question(self) -> str:
        """The filter of those that may have come or changed; empty: all."""
        at = None if self._all_anew else self._settled_until()
        return f"leased_at>={_spelled(at)}" if at is not None else ""

    def take(self, question: str, rows: Iterable[Row], *, more: bool) -> None:
        """The answer to a question, the newest first; `more` if it was cut off after `most`."""
        told = list(rows)
        unseen = {row.get("lineage") for row in told} - {row.get("lineage") for row in self.rows}
        # What is cut off ends somewhere behind what is known, and nobody knows how far.
        whole = not question or more
        self._all_anew = bool(unseen) and bool(self.rows) and not whole
        if whole:
            self.more, merged = more, told
        else:
            new = {row["id"] for row in told}
            merged = [*told, *(row for row in self.rows if row["id"] not in new)]
        self.more |= len(merged) > self.most
        if merged[: self.most] != self.rows:
            self.rows = merged[: self.most]
            self.points = points(self.rows)

    def _settled_until(self) -> datetime | None:
        """When the oldest Step was leased that may still change; else the newest."""
        open = [row for row in self.rows if row.get("status") == _LEASED] or self.rows[:1]
        at = open[-1].get("leased_at") if open else None
        return at if isinstance(at, datetime) else None


def _spelled(at: datetime) -> str:
    """As the language of filters has it; times of the store are in UTC, whether they say so or not."""
    return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
