"""Finds the answer in a text.

Invariants: pure, and linear in the length of the text, whatever a model wrote; of several answers the last one counts;
an answer that begins and is never closed does not count.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

BOXED = "boxed"
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_MOST_WRAPPINGS = 8


def extract(schema: str, text: str) -> str | None:
    """Returns the answer in a text, or None. `schema` is `boxed` or the name of a tag; empty: the whole text."""
    if not schema:
        return text.strip() or None
    return _last_box(text) if schema == BOXED else _last_tag(schema, text)


def _last_tag(name: str, text: str) -> str | None:
    end = text.rfind(f"</{name}>")
    start = text.rfind(f"<{name}>", 0, end) if end >= 0 else -1
    return text[start + len(name) + 2 : end].strip() if start >= 0 else None


def _last_box(text: str) -> str | None:
    last = deque(_boxes(text), maxlen=1)
    return _unwrapped(last[0]) if last else None


def _unwrapped(content: str) -> str:
    """If a box contains only another box, the inner one is the answer."""
    for _ in range(_MOST_WRAPPINGS):
        inner = _BOX.match(content)
        if inner is None or _closings(content).get(inner.end() - 1) != len(content) - 1:
            break
        content = content[inner.end() : -1].strip()
    return content


def _boxes(text: str) -> Iterator[str]:
    """The contents of all boxes that are closed, the outermost where they are nested."""
    ends = _closings(text)
    at = 0
    while box := _BOX.search(text, at):
        end = ends.get(box.end() - 1)
        if end is not None:
            yield text[box.end() : end].strip()
        at = box.end() if end is None else end


def _closings(text: str) -> dict[int, int]:
    """Where each opening brace is closed, found in one pass. A brace after a backslash is an ordinary character."""
    ends: dict[int, int] = {}
    open_at: list[int] = []
    for match in _BRACES.finditer(text):
        # In `\boxed{` the backslash with its letter is one match, and the brace is another.
        if match[0] == "{":
            open_at.append(match.start())
        elif match[0] == "}" and open_at:
            ends[open_at.pop()] = match.start()
    return ends
