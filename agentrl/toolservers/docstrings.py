"""Splits the docstring of a function: what it does, and what each argument means.

Three ways to write arguments are read: a section `Args:` (Google), lines `:param name:` (Sphinx), and a section
`Parameters` with a line of dashes below it (NumPy).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_GOOGLE = re.compile(r"(?:args|arguments|parameters):\s*", re.IGNORECASE)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_SPHINX_OTHER = re.compile(r":(?:type|return|returns|rtype|raises?)\b[^:]*:")
_NUMPY_ENTRY = re.compile(r"(\w+)\s*(?::.*)?")


def split(docstring: str) -> tuple[str, dict[str, str]]:
    """The text without the descriptions of arguments, and these descriptions by the name of the argument."""
    lines = docstring.expandtabs().splitlines()
    text: list[str] = []
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if _GOOGLE.fullmatch(line.strip()):
            end = _end_of_section(lines, at + 1, _indent(line))
            found |= _entries(lines[at + 1 : end], _GOOGLE_ENTRY, described_below=False)
        elif line.strip() == "Parameters" and at + 1 < len(lines) and set(lines[at + 1].strip()) == {"-"}:
            end = _end_of_numpy(lines, at + 2)
            found |= _entries(lines[at + 2 : end], _NUMPY_ENTRY, described_below=True)
        elif sphinx := _SPHINX.fullmatch(line.strip()):
            end = _end_of_section(lines, at + 1, _indent(line), blank_ends=True)
            found[sphinx[1]] = " ".join([sphinx[2], *(each.strip() for each in lines[at + 1 : end])]).strip()
        elif _SPHINX_OTHER.match(line.strip()):
            end = at + 1
        else:
            text.append(line)
            end = at + 1
        at = end
    return re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip(), {name: words for name, words in found.items() if words}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _end_of_section(lines: Sequence[str], start: int, indent: int, *, blank_ends: bool = False) -> int:
    """The first line that is not indented more than its heading."""
    for at in range(start, len(lines)):
        if (blank_ends and not lines[at].strip()) or (lines[at].strip() and _indent(lines[at]) <= indent):
            return at
    return len(lines)


def _end_of_numpy(lines: Sequence[str], start: int) -> int:
    """The line before the next heading with dashes below it."""
    for at in range(start, len(lines) - 1):
        below = lines[at + 1].strip()
        if lines[at].strip() and below and set(below) == {"-"}:
            return at
    return len(lines)


def _entries(lines: Sequence[str], entry: re.Pattern[str], *, described_below: bool) -> dict[str, str]:
    """Lines `name: text`, each with the deeper lines below it."""
    found: dict[str, list[str]] = {}
    outer = min((_indent(line) for line in lines if line.strip()), default=0)
    words: list[str] = []
    for line in lines:
        match = entry.fullmatch(line.strip()) if _indent(line) == outer else None
        if match:
            words = found[match[1]] = [] if described_below else [match[2]]
        elif line.strip():
            words.append(line.strip())
    return {name: " ".join(words).strip() for name, words in found.items()}
