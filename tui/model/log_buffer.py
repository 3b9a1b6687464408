"""Holds the log lines of one unit, or of several merged by time, with a filter and marks.

Invariants:
- Only the newest lines are kept, and the dropped ones are counted.
- A line without a time stays behind the line before it.
- A filter hides lines only while it lasts, and never a marked line.
"""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass, field

from agentrl.formatting.amounts import counted
from agentrl.formatting.log_lines import as_text, time_of
from agentrl.formatting.safe_text import sanitise
from tui.model.styled_text import LONGEST

MOST_LINES = 20_000


@dataclass(frozen=True, slots=True, order=True)
class LogEntry:
    """One line of a log."""

    at: float
    """The time of the line, or of the line before it."""
    number: int
    source: str = field(compare=False)
    text: str = field(compare=False)
    aside: bool = field(compare=False, default=False)
    """A remark of the console, not a line of the unit."""


class LogBuffer:
    """The lines, the oldest first."""

    def __init__(self, *, merged: bool = False) -> None:
        self.merged = merged
        """Whether lines of several units are ordered by their times."""
        self.dropped = 0
        self.pattern = ""
        self._lines: list[LogEntry] = []
        self._shown: list[LogEntry] = []
        self._searched: re.Pattern[str] | None = None
        self._number = 0
        self._marked = set[int]()
        """Numbers of lines."""
        self._last: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._shown)

    def add(self, source: str, texts: list[str], *, aside: bool = False) -> int:
        """Add lines. Returns the number of added lines that pass the filter."""
        shown_before = len(self._shown)
        for text in (part for line in texts for part in as_text(line).split("\n")):
            at = time_of(text) if self.merged else None
            at = self._last.get(source, 0.0) if at is None else at
            self._last[source] = at
            self._number += 1
            more = f" … and {counted(len(text) - LONGEST, 'more characters')}" if len(text) > LONGEST else ""
            safe = sanitise(text[:LONGEST].replace("\t", "    "))
            entry = LogEntry(at if self.merged else 0.0, self._number, source, f"{safe}{more}", aside)
            self._put(self._lines, entry)
            if self._passes(entry):
                self._put(self._shown, entry)
        added = len(self._shown) - shown_before
        self._shrink()
        return added

    def only(self, pattern: str) -> str:
        """Show only lines that match. Returns the fault of the pattern, or an empty string."""
        try:
            self._searched = re.compile(pattern, re.IGNORECASE) if pattern else None
        except re.error as wrong:
            return f"{pattern}: {wrong}."
        self.pattern = pattern
        self._shown = [entry for entry in self._lines if self._passes(entry)]
        return ""

    def window(self, start: int, count: int) -> list[LogEntry]:
        return self._shown[max(0, start) : max(0, start) + count]

    # ---- marks ----

    def mark(self, place: int) -> bool:
        """Mark the line at a place or remove its mark. Returns whether it is marked now."""
        self._marked ^= {self._shown[place].number}
        return self.is_marked(self._shown[place])

    def is_marked(self, entry: LogEntry) -> bool:
        return entry.number in self._marked

    def marks(self) -> list[int]:
        """The places of marked lines, from top to bottom."""
        return [place for place, entry in enumerate(self._shown) if entry.number in self._marked]

    def matches_in(self, text: str) -> list[tuple[int, int]]:
        """The ranges of a line that match the pattern."""
        if self._searched is None:
            return []
        return [found.span() for found in self._searched.finditer(text) if found.end() > found.start()]

    def _put(self, lines: list[LogEntry], entry: LogEntry) -> None:
        if self.merged and lines and entry < lines[-1]:
            insort(lines, entry)
        else:
            lines.append(entry)

    def _passes(self, entry: LogEntry) -> bool:
        kept = entry.aside or self.is_marked(entry)
        return self._searched is None or kept or self._searched.search(entry.text) is not None

    def _shrink(self) -> None:
        over = len(self._lines) - MOST_LINES
        if over > MOST_LINES // 10:
            gone = {entry.number for entry in self._lines[:over]}
            del self._lines[:over]
            self._shown = [entry for entry in self._shown if entry.number not in gone]
            self._marked -= gone
            self.dropped += over
