"""Folds repeated log lines: of several lines that differ only in numbers, quoted words and addresses, only the last one
is shown.

Invariants: the line that is kept is unchanged and keeps its place; lines of an indented block, such as a traceback, are
never folded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|<[^<>]{1,200}>")
_NUMBER = re.compile(r"(?:0x|U\+)[0-9a-fA-F]+|\b[0-9a-fA-F]{8}[0-9a-fA-F-]*\b|\d+(?:[.:,]\d+)*")


def pattern_of(text: str) -> str:
    """The text without the parts that differ between occurrences: numbers, quoted words, addresses, extra spaces."""
    return _NUMBER.sub("#", _QUOTED.sub("'…'", " ".join(text.split())))


def fold_repeats(lines: Sequence[str]) -> list[str]:
    """The lines, with repeated ones as a single line and their count: `×13 call 7 has failed`."""
    patterns = [None if _in_indented_block(lines, place) else pattern_of(line) for place, line in enumerate(lines)]
    counts = Counter(pattern for pattern in patterns if pattern)
    last = {pattern: place for place, pattern in enumerate(patterns) if pattern}
    return [
        line if not pattern or counts[pattern] == 1 else f"×{counts[pattern]} {line}"
        for place, (pattern, line) in enumerate(zip(patterns, lines, strict=True))
        if not pattern or last[pattern] == place
    ]


def _in_indented_block(lines: Sequence[str], place: int) -> bool:
    return any(line[:1].isspace() for line in lines[max(0, place - 1) : place + 2])
