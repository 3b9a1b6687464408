"""Names as people know them: which known one was meant, and what kinds of documents are called.

Invariant: a name is suggested only where it is a slip of the pen away; another number is another unit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.+)-(\d+)")
_OF_PEOPLE = {
    "Task": "tasks",
    "Record": "records",
    "ToolCall": "tool calls",
    "DispatchedSamplingTask": "model calls",
    "Turn": "turns",
    "Step": "steps",
    "Checkpoint": "checkpoints",
    "Publication": "versions",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant; empty if none is near."""
    number = _number(name)
    candidates = [each for each in known if not number or _number(each) == number]
    return next(iter(difflib.get_close_matches(name, candidates, n=1)), "")


def _number(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return found[2] if found else ""


def plural(kind: str) -> str:
    """What people call documents of a kind that the database names."""
    return _OF_PEOPLE.get(kind, kind)


def singular(kind: str) -> str:
    return plural(kind).removesuffix("s")
