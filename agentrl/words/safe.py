"""Text of a run made fit for a terminal.

Invariants: what a run says (names, sentences, log lines, output of models and tools) is hostile: it cannot move the
cursor, colour anything, set a title, turn the direction of text or take no room; one line stays one line.
"""

from __future__ import annotations

import re

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
# Marks over marks grow out of their line.
_MARK = r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_HEAPS = re.compile(f"({_MARK}{{4}}){_MARK}+")
_LINES = re.compile(r"[\t\n\u2028\u2029]+")


def sanitise(text: object) -> str:
    """One line that is safe to show in a terminal."""
    return _LINES.sub(" ", sanitise_lines(str(text)))


def sanitise_lines(text: str) -> str:
    """The same for text of several lines."""
    if text.isascii() and text.isprintable():
        return text
    return _HEAPS.sub(r"\1", _CONTROLS.sub("", _ESCAPES.sub("", text)))
