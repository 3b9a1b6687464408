"""Keys with alt held, and an escape with a key soon after it: terminals, tmux among them, send both alike.

Invariant: such a key is the escape and, where that is safe, the key; it is never another sign, nor lost.
"""

from __future__ import annotations

from typing import cast

from textual import _ansi_sequences

HELD = "alt+"
_TAKEN_FOR_OTHERS = (*"0123456789-=§", "b", "f")
"""With an escape before, for signs that a Mac types with alt, or for ctrl with an arrow."""


def keys_stay_keys() -> None:
    """Have Textual read an escape and a digit as that digit with alt held, as it does with most keys."""
    sequences = cast("dict[str, object]", _ansi_sequences.ANSI_SEQUENCES_KEYS)
    for key in _TAKEN_FOR_OTHERS:
        sequences.pop(f"\x1b{key}", None)
