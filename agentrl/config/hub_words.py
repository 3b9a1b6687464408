"""Words for datasets of a hub. A run file may have one in place of a path."""

from __future__ import annotations

PREFIX = "hub:"


def is_hub_word(word: str) -> bool:
    return word.startswith(PREFIX)
