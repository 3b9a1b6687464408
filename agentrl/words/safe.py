"""Text of a run made fit for a terminal.

Invariants: what a run says (names, sentences, log lines, output of models and tools) is hostile: it cannot move the
cursor, colour anything, set a title, turn the direction of text, take no room or look like nothing; one line stays one
line, and no sign carries more than a few marks.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles, links, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS and other strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?"
)
# C0, DEL and C1 but tab and newline; what takes no room or turns the direction, and makes text read as another.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
_FILLERS = re.compile("[\u115f\u1160\u17b4\u17b5\u3164\uffa0]")
"""Letters that look like nothing, so that a name may seem empty or equal to another."""
_SHOWN = "\ufffd"
_MOST_MARKS = 4
_MAYBE_A_HEAP = re.compile(rf"[^\w\s\x00-\x7f]{{{_MOST_MARKS + 1}}}")
_LINES = re.compile(r"[\t\n\u2028\u2029]+")


def sanitise(text: object) -> str:
    """One line that is safe to show in a terminal."""
    return _LINES.sub(" ", sanitise_lines(str(text)))


def sanitise_lines(text: str) -> str:
    """The same for text of several lines."""
    if text.isascii() and text.isprintable():
        return text
    text = _FILLERS.sub(_SHOWN, _CONTROLS.sub("", _ESCAPES.sub("", text)))
    return _heaps().sub(r"\1", text) if _MAYBE_A_HEAP.search(text) else text


@cache
def _heaps() -> re.Pattern[str]:
    """Marks over marks, in any script: they grow out of their line. Looked up once, where a text may have some."""
    marks = "".join(sign for sign in map(chr, _WITH_MARKS) if unicodedata.category(sign) in ("Mn", "Me"))
    return re.compile(f"([{marks}]{{{_MOST_MARKS}}})[{marks}]+")


_WITH_MARKS = (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))
