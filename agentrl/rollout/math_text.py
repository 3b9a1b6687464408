"""Mathematical answers as text: removes what changes only the appearance, and reads plain numbers.

It exists because most answers are numbers, and comparing them needs no process. Invariant: fast for any text.
"""

from __future__ import annotations

import re
from fractions import Fraction

_LONGEST_NUMBER = 200
_NOISE = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle|\\limits|\\[,;:! ]|\\q?quad|\\\$|\$|\^\\circ|\^\{\\circ\}|\\?%|~"
)
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf|operatorname)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_NUMBER = re.compile(r"([-+]?)(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?")


def tidy(text: str) -> str:
    """Removes what changes the appearance only. Words beside mathematics (units) are removed; words alone stay."""
    text = text.replace("{,}", ",")
    bare = _TEXT.sub(" ", text)
    text = bare if bare.strip(" $.") else _TEXT.sub(lambda match: match[1], text)
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), _NOISE.sub(" ", text))
    return " ".join(text.split()).rstrip(" .,;")


def number(text: str) -> Fraction | None:
    """The exact value of a plain number or fraction; None for anything else."""
    match = _NUMBER.fullmatch(text.replace(" ", "")) if len(text) <= _LONGEST_NUMBER else None
    if match is None or (match[3] is not None and not int(match[3])):
        return None
    value = Fraction(match[2]) / int(match[3] or 1)
    return -value if match[1] == "-" else value
