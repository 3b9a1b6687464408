"""Makes text of a run safe for a terminal.

Text of a run (names, messages, log lines, output of models and tools) is untrusted.

Invariants: it cannot move the cursor, set colours or a title, change the direction of text, or be invisible; one line
stays one line; no character carries more than a few combining marks.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import groupby

from agentrl.tokens import image_marks

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
"""Characters with the Unicode property Default_Ignorable_Code_Point, and code points reserved for it. They are
invisible."""
_ANNOTATIONS = "\ufff9-\ufffb\U00013430-\U00013440"
"""Format characters without that property. They stack other characters."""
# C0, DEL and C1 except tab and newline, and surrogates.
_GONE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_DEFAULT_IGNORABLE}{_ANNOTATIONS}]")
_BLANKS = "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159"
"""Characters that look empty but are no spaces. With them a name could look empty or equal to another."""
_BEFORE_OTHERS = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Characters without width that enclose the following ones."""
_SEEN = re.compile(f"[{_BLANKS}{_BEFORE_OTHERS}]")
_SHOWN = "\ufffd"
_MOST_MARKS = 4
_INNER_JAMO = "\u1160-\u11ff\ud7b0-\ud7fb"
"""Korean vowels and final consonants, which are drawn into the preceding character."""
_MARKS = ("Mn", "Mc", "Me", "Cn")
"""`Cn`: a character that is unassigned in the Unicode of this Python may be a mark in a later one."""
_SKINS = "\U0001f3fb-\U0001f3ff"
"""Skin tones, which colour the preceding emoji."""
_MAYBE_A_HEAP = re.compile(rf"(?:[^\w\s\x00-\x7f]|[{_INNER_JAMO}]){{{_MOST_MARKS + 1}}}")
_LINES = re.compile(r"[\t\n]+")
_SEPARATORS = re.compile("[\u2028\u2029]")


def sanitise(text: object) -> str:
    """One line that is safe to show in a terminal."""
    return _LINES.sub(" ", sanitise_lines(str(text)))


def sanitise_lines(text: str) -> str:
    """Text of several lines that is safe to show in a terminal."""
    if text.isascii() and text.isprintable():
        return text
    text = image_marks.shown(text).replace(image_marks.CHARACTER, _SHOWN)
    text = _SEPARATORS.sub(" ", _GONE.sub("", _SEEN.sub(_SHOWN, _ESCAPES.sub("", text))))
    return _heaps().sub(r"\1", text) if _MAYBE_A_HEAP.search(text) else text


@cache
def _heaps() -> re.Pattern[str]:
    """Finds stacked marks of any script, which would overflow their line. The pattern is built when a text may have
    some."""
    marks = [sign for sign in range(0x300, 0x1F000) if unicodedata.category(chr(sign)) in _MARKS]
    spans = [[each for _, each in span] for _, span in groupby(enumerate(marks), key=lambda pair: pair[1] - pair[0])]
    kinds = "".join(f"{chr(span[0])}-{chr(span[-1])}" for span in spans) + _INNER_JAMO + _SKINS
    return re.compile(f"([{kinds}]{{{_MOST_MARKS}}})[{kinds}]+")
