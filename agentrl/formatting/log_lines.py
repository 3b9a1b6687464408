"""Splits chunks of a log into lines, filters lines by pattern and time, and shows JSON lines as text. Pure.

Invariants: each line is returned once and whole, wherever the chunks are cut; a line without a time gets the time of
the line before it.
"""

from __future__ import annotations

import codecs
import datetime
import json
import re
from collections.abc import Callable

from agentrl.errors import UsageError

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: ?(?:Z|[+-]\d\d:?\d\d))?")
_JSON_BEGINS = '{"time": "'
_LONGEST_LINE = 1 << 20


class Lines:
    """Splits chunks of bytes into lines."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The lines that this chunk completes."""
        self._rest += self._decoder.decode(data)
        *whole, self._rest = self._rest.split("\n")
        if len(self._rest) > _LONGEST_LINE:
            whole.append(self._rest)
            self._rest = ""
        return [line.removesuffix("\r") for line in whole]

    def end(self) -> list[str]:
        """The last line, if it has no newline."""
        rest, self._rest = self._rest + self._decoder.decode(b"", True), ""
        self._decoder.reset()
        return [rest] if rest else []


def as_text(line: str) -> str:
    """A line of `logs: json` in the form of `logs: text`; any other line unchanged."""
    if not line.startswith(_JSON_BEGINS):
        return line
    try:
        found = json.loads(line)
        text = f"{found['time']} {found['level']} {found['logger']}: {found['message']}"
    except (ValueError, KeyError, TypeError):
        return line
    return "\n".join([text, *(str(found[more]) for more in ("error", "stack") if more in found)])


class Choice:
    """Decides which lines are shown."""

    def __init__(self, pattern: str, since_at: float | None) -> None:
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as wrong:
            raise UsageError(f"--grep {pattern}: {wrong}.", hint="It is a regular expression of Python.") from None
        self._since_at = since_at
        self._recent = since_at is None
        self.saw_time = False

    def __call__(self, line: str) -> bool:
        if self._since_at is not None:
            at = time_of(line)
            if at is not None:
                self.saw_time = True
                self._recent = at >= self._since_at
            # Lines before the first time are shown, because only lines that are known to be older are left out.
            elif not self.saw_time:
                self._recent = True
        return self._recent and (self._pattern is None or self._pattern.search(line) is not None)


def time_of(line: str) -> float | None:
    """The wall-clock time near the beginning of a line; a time without zone is local."""
    match = _TIME.search(line[:100])
    if match is None:
        return None
    text = match.group().replace(",", ".").replace(" +", "+").replace(" -", "-").replace(" Z", "Z")
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def last(lines: list[str], count: int, keep: Callable[[str], bool]) -> list[str]:
    """The last `count` lines that `keep` accepts; 0 means all."""
    kept = [line for line in lines if keep(line)]
    return kept[-count:] if count else kept
