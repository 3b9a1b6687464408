"""Counts errors that repeat in the logs of units, so that one line stands for many.

If a helper of a program dies, such as a rate limiter, often no process dies with it, but its callers log the same error
again and again.

Invariants:
- Errors that differ only in numbers, quoted words and addresses are one error.
- A look at a log reads only a bounded, newest part of it.
- Lines from before the start of this process are not counted, because their time is not known.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.formatting.log_lines import as_text
from agentrl.formatting.repeated_lines import pattern_of
from agentrl.host.log_files import clean
from agentrl.protocol.messages import RepeatedError

COUNT_FROM = 20
"""An error that was logged less often than this is not reported."""
FORGOTTEN_S = 600.0
"""An error that was not logged for this time is over."""
MOST_REPORTED = 5
"""The most errors that are reported for one unit."""
MOST_KINDS = 200
"""The most errors that are counted for one unit: those that were logged last."""
MOST_BYTES = 256 << 10
"""The most bytes that a look reads of one log ..."""
MOST_BYTES_OF_ALL = 1 << 20
"""... and of all logs."""
MOST_CHARS = 200
_SEARCHED_CHARS = 1_000
"""How many characters of a line are searched. The search goes backward from the end of a name, so it takes at most
linear time."""
_NAME_ENDS = re.compile(r"(?:Error|Exception|Died|Failure)(?= ?[:(])|(?<![\w.])(?:ERROR|CRITICAL|FATAL)\b")
_NAME_BACKWARD = re.compile(r"[\w.]*")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::|$)")
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(slots=True)
class _Repeats:
    text: str
    first_at: float
    last_at: float = 0.0
    count: int = 0


class RepeatedErrors:
    """The repeated errors of the units of one host, by unit."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}
        self._by_unit: dict[str, dict[str, _Repeats]] = {}
        """Errors of each unit by pattern, in the order in which they were last logged."""
        self._began = True

    def look(self, logs: Sequence[tuple[str, Path]]) -> None:
        """Count the errors that units have logged since the last look. Blocks: use a thread."""
        now, read = time.time(), {}
        self._forget(now)
        most = min(MOST_BYTES, MOST_BYTES_OF_ALL // max(1, len(logs)))
        for unit, path in logs:
            with contextlib.suppress(OSError):
                read[path] = self._look(unit, path, now, most)
        self._read, self._began = read, False

    def of_unit(self, unit: str) -> tuple[RepeatedError, ...]:
        """The errors of a unit, the most frequent first. Errors with about the same count keep their order."""
        kinds = self._by_unit.get(unit, {})
        found = [kind for kind in kinds.values() if kind.count >= COUNT_FROM]
        found.sort(key=lambda each: (-each.count.bit_length(), each.first_at))
        return tuple(
            RepeatedError(each.text, each.count, each.first_at, each.last_at) for each in found[:MOST_REPORTED]
        )

    def _forget(self, now: float) -> None:
        for unit, kinds in list(self._by_unit.items()):
            for pattern in [pattern for pattern, each in kinds.items() if now - each.last_at > FORGOTTEN_S]:
                del kinds[pattern]
            if not kinds:
                del self._by_unit[unit]

    def _look(self, unit: str, path: Path, now: float, most: int) -> int:
        """Count the new errors of one log. Returns the position up to which the log is read."""
        size = os.stat(path).st_size
        begin = self._read.get(path, size if self._began else 0)
        # The log was cut.
        begin = begin if begin <= size else 0
        if begin == size:
            return size
        begin = max(begin, size - most)
        with open(path, "rb") as file:
            file.seek(begin)
            whole, newline, rest = file.read(most).rpartition(b"\n")
        lines = [part for line in whole.decode(errors="replace").splitlines() for part in as_text(line).split("\n")]
        for text in errors_in(lines):
            self._count(unit, text, now)
        return begin + len(whole) + len(newline) if newline or len(rest) < most else size

    def _count(self, unit: str, text: str, now: float) -> None:
        kinds, pattern = self._by_unit.setdefault(unit, {}), pattern_of(text)
        each = kinds.pop(pattern, None) or _Repeats(text, now)
        each.count, each.last_at = each.count + 1, now
        kinds[pattern] = each
        if len(kinds) > MOST_KINDS:
            del kinds[next(iter(kinds))]


def errors_in(lines: Iterable[str]) -> Iterator[str]:
    """The errors of a log without their prefixes, such as the time.

    A traceback and the line before it are one error: the last line of the traceback, which names the cause.
    """
    in_traceback, before = False, ""
    for line in lines:
        if in_traceback and line[:1].isspace():
            continue
        if in_traceback and _EXCEPTION.match(line):
            in_traceback = False
            yield clean(line[:_SEARCHED_CHARS])[:MOST_CHARS]
            continue
        in_traceback = line.startswith(_TRACEBACK)
        if before and not in_traceback:
            yield before
        before = "" if in_traceback else _error_in(line[:_SEARCHED_CHARS])
    if before:
        yield before


def _error_in(line: str) -> str:
    """The text from the name of an error to the end of the line; empty if the line names no error."""
    for found in _NAME_ENDS.finditer(line):
        name = _NAME_BACKWARD.match(line[: found.start()][::-1])
        start = found.start() - (len(name[0]) if name else 0)
        if found[0].isupper() or any(letter.isupper() for letter in line[start : found.start()]):
            return clean(line[start:])[:MOST_CHARS]
    return ""
