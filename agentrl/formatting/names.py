"""Suggests the name that was probably meant, and gives the plain English names of document kinds.

Invariant: a suggested name is similar and has the same number, because `web-1` is not `web-2`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.+)-(\d+)")
_PLURALS = {
    "Task": "tasks",
    "Record": "records",
    "ToolCall": "tool calls",
    "DispatchedSamplingTask": "model calls",
    "Step": "steps",
    "Checkpoint": "checkpoints",
    "Publication": "versions",
    "Replay": "replays",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar known name, or an empty text."""
    number = _number(name)
    candidates = [each for each in known if not number or _number(each) == number]
    return next(iter(difflib.get_close_matches(name, candidates, n=1)), "")


def _number(name: str) -> str:
    match = _NUMBERED.fullmatch(name)
    return match[2] if match else ""


def plural(kind: str) -> str:
    """The plain name of a document kind: `model calls` for `DispatchedSamplingTask`."""
    return _PLURALS.get(kind, kind)


def singular(kind: str) -> str:
    return plural(kind).removesuffix("s")
