"""Checks the placeholders in commands, environments and probes: `{slot}`, `{unit}`, ...

Invariants:
- Only the names in the table of placeholders are replaced.
- Other braces stay part of the command.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

PLACEHOLDERS = ("slot", "unit", "run_dir", "state_dir", "python")

_BRACED = re.compile(r"(?<![{$])\{([A-Za-z_][A-Za-z0-9_-]*)\}(?!\})")


def misspelt(text: str) -> str:
    """The message about a misspelt placeholder; empty if there is none."""
    for name in unknown(text):
        if close := difflib.get_close_matches(name.lower(), PLACEHOLDERS, n=1, cutoff=0.75):
            return f"{{{name}}} is no placeholder; did you mean {{{close[0]}}}?"
    return ""


def unknown(text: str) -> Iterator[str]:
    """Names in braces that are not replaced. Text of several words is code and keeps its braces."""
    if not re.search(r"\s", text):
        yield from (name for name in _BRACED.findall(text) if name not in PLACEHOLDERS)
