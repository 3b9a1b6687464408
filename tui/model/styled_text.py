"""Defines styled text: spans with a tone, which a widget turns into colours.

Invariants:
- The text of a span fits on one line and is safe to show.
- A tone only repeats the meaning of the words, so the text is complete without colours.
- Widths are terminal cells, not characters.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from agentrl.formatting.safe_text import sanitise

LONGEST = 4096
"""Characters of one text that are processed; a line shows fewer."""


class Tone(enum.StrEnum):
    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    GOOD = "good"
    BUSY = "busy"
    """In a transition that a command requested."""
    WARN = "warn"
    BAD = "bad"
    ACCENT = "accent"
    """Keys and selections."""


GROUND_NAMES = ("ground", "bar", "cursor", "match")
"""Backgrounds: the screen, its bars, the row under the cursor, matches of a search."""
COLOUR_NAMES = frozenset({*(tone.value for tone in Tone), *GROUND_NAMES})


class Span(NamedTuple):
    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


def span(text: object, tone: Tone = Tone.PLAIN) -> Span:
    """A span of untrusted text."""
    shown = text if isinstance(text, str) else str(text)
    return Span(sanitise(shown[:LONGEST]), tone)


def width_of(spans: Iterable[Span]) -> int:
    return sum(cell_len(part.text) for part in spans)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Text of exactly this width: cut with an ellipsis, or padded."""
    if text.isascii():
        if len(text) <= width:
            return text.rjust(width) if right else text.ljust(width)
        return text[: width - 1] + "…" if width > 0 else ""
    taken = cell_len(text)
    if taken > width:
        return set_cell_size(text, max(0, width - 1)) + "…" if width > 0 else ""
    return " " * (width - taken) + text if right else text + " " * (width - taken)


def cut(spans: Sequence[Span], width: int) -> Line:
    """A line of exactly this width."""
    left, shown = width, list[Span]()
    for number, part in enumerate(spans):
        taken = cell_len(part.text)
        if taken > left or (taken == left and number + 1 < len(spans) and any(s.text for s in spans[number + 1 :])):
            shown.append(Span(fitted(part.text + " " if taken <= left else part.text, left), part.tone))
            return tuple(shown)
        shown.append(part)
        left -= taken
    if left:
        shown.append(Span(" " * left))
    return tuple(shown)


def wrapped(text: str, width: int) -> list[str]:
    """Text wrapped at spaces; a word that is too long is broken."""
    lines, rest = list[str](), text
    # Only one line is measured at a time, because the rest may be long.
    while width > 0 and (fits := _fitting(rest, width)) < len(rest):
        space = rest.rfind(" ", 0, fits + 1)
        end = space if space > fits // 3 else fits
        lines.append(rest[:end])
        rest = rest[end:].lstrip(" ")
    return [*lines, rest]


def folded(spans: Line, width: int, most: int) -> list[Line]:
    """A line wrapped as `wrapped` does it, with its tones; the last line has the rest."""
    text = "".join(part.text for part in spans)
    made, at = list[Line](), 0
    for number, piece in enumerate(wrapped(text, width)[:most], 1):
        end = len(text) if number == most else at + len(piece)
        made.append(_part(spans, at, end))
        at = end + len(text[end:]) - len(text[end:].lstrip(" "))
    return made


def _part(spans: Line, begin: int, end: int) -> Line:
    """The characters from one place to another."""
    made, at = list[Span](), 0
    for text, tone in spans:
        shown = text[max(0, begin - at) : max(0, end - at)]
        if shown:
            made.append(Span(shown, tone))
        at += len(text)
    return tuple(made)


def _fitting(text: str, width: int) -> int:
    """The number of characters that fit; at least one, so that wrapping ends."""
    if text.isascii():
        return max(1, min(len(text), width))
    taken = 0
    for place, sign in enumerate(text):
        taken += cell_len(sign)
        if taken > width:
            return max(1, place)
    return len(text)


_STEPS = "▁▂▃▄▅▆▇█"


def trend(values: Iterable[float], width: int, *, low: float | None = None, high: float | None = None) -> str:
    """The newest values as a curve of one line, at most `width` cells."""
    shown = list(values)[-width:] if width > 0 else []
    if not shown:
        return ""
    least = min(shown) if low is None else low
    most = max(shown) if high is None else high
    if most <= least:
        return _STEPS[0] * len(shown)
    last = len(_STEPS) - 1
    # Divided first, because the range may be too small for a reciprocal.
    return "".join(_STEPS[max(0, min(last, round((value - least) / (most - least) * last)))] for value in shown)


def filled(share: float) -> str:
    """One cell, filled from below in eight steps, or empty."""
    return " " if share <= 0 else _STEPS[min(len(_STEPS) - 1, int(share * len(_STEPS)))]


def _as_one_sign(dots: int) -> str:
    """The ASCII sign for braille dots at the top, in the middle, at the bottom or at several heights of a cell."""
    top, middle, bottom = dots & 0x09, dots & 0x36, dots & 0xC0
    if not middle and bool(top) != bool(bottom):
        return "'" if top else "."
    return ":" if top or bottom else "-"


_ASCII = str.maketrans(
    {
        **dict(zip(_STEPS, "_.-~=+*#", strict=True)),
        **{chr(0x2800 + dots): _as_one_sign(dots) for dots in range(1, 256)},
        "…": "~", "·": "|", "–": "-", "—": "-", "→": ">", "←": "<", "↑": "^", "↓": "v", "▲": "^", "▼": "v",
        "●": "+", "○": "o", "◐": "~", "✖": "X", "✗": "x", "✓": "*", "↻": "@", "■": "#", "▸": ">", "◆": "*",
        "‼": "!", "×": "x", "│": "|", "─": "-", "≥": ">", "≤": "<", "µ": "u", "█": "#", "░": ".",
        "⟨": "<", "⟩": ">", "‹": "<", "›": ">", "«": "{", "»": "}", "↵": "$", "≠": "!", "≡": "%", "├": "|", "└": "+",
        "┤": "|", "┄": ".", "±": "~",
    }
)  # fmt: skip


def as_ascii(text: str) -> str:
    """ASCII text of the same width: signs of the console have a replacement, others become question marks."""
    if text.isascii():
        return text
    plain = text.translate(_ASCII)
    return plain if plain.isascii() else "".join(c if c.isascii() else "?" * cell_len(c) for c in plain)
