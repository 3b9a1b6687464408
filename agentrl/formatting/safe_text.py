"""Text of a run made fit for a terminal.

Invariants: what a run says (names, sentences, log lines, output of models and tools) is hostile: it cannot move the
cursor, colour anything, set a title, turn the direction of text, take no room or look like nothing; one line stays one
line, and no sign carries more than a few marks.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import groupby

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles, links, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS and other strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?"
)
_DEFAULT_IGNORABLE = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""All that has Unicode's property Default_Ignorable_Code_Point, with what is reserved for it: shown as nothing."""
_ANNOTATIONS = "\ufff9-\ufffb\U00013430-\U00013440"
"""Formats without that property, which put signs above or inside each other."""
# C0, DEL and C1 but tab and newline, and halves of pairs.
_GONE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_DEFAULT_IGNORABLE}{_ANNOTATIONS}]")
_BLANKS = "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159"
"""Letters and signs that look like nothing and are no spaces, so that a name may seem empty or equal to another."""
_BEFORE_OTHERS = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Signs that go around or below those after them, of no width of their own."""
_SEEN = re.compile(f"[{_BLANKS}{_BEFORE_OTHERS}]")
_SHOWN = "\ufffd"
_MOST_MARKS = 4
_INNER_JAMO = "\u1160-\u11ff\ud7b0-\ud7fb"
"""Vowels and ends of Korean syllables, which are drawn into the sign before them."""
_MARKS = ("Mn", "Mc", "Me", "Cn")
"""What no Unicode that this Python knows has assigned may be a mark in a later one."""
_SKINS = "\U0001f3fb-\U0001f3ff"
"""Colours of the face or hand before them."""
_MAYBE_A_HEAP = re.compile(rf"(?:[^\w\s\x00-\x7f]|[{_INNER_JAMO}]){{{_MOST_MARKS + 1}}}")
_LINES = re.compile(r"[\t\n]+")
_SEPARATORS = re.compile("[\u2028\u2029]")


def sanitise(text: object) -> str:
    """One line that is safe to show in a terminal."""
    return _LINES.sub(" ", sanitise_lines(str(text)))


def sanitise_lines(text: str) -> str:
    """The same for text of several lines."""
    if text.isascii() and text.isprintable():
        return text
    text = _SEPARATORS.sub(" ", _GONE.sub("", _SEEN.sub(_SHOWN, _ESCAPES.sub("", text))))
    return _heaps().sub(r"\1", text) if _MAYBE_A_HEAP.search(text) else text


@cache
def _heaps() -> re.Pattern[str]:
    """Marks over marks, in any script: they grow out of their line. Looked up once, where a text may have some."""
    marks = [sign for sign in range(0x300, 0x1F000) if unicodedata.category(chr(sign)) in _MARKS]
    spans = [[each for _, each in span] for _, span in groupby(enumerate(marks), key=lambda pair: pair[1] - pair[0])]
    kinds = "".join(f"{chr(span[0])}-{chr(span[-1])}" for span in spans) + _INNER_JAMO + _SKINS
    return re.compile(f"([{kinds}]{{{_MOST_MARKS}}})[{kinds}]+")
