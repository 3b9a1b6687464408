"""Words for datasets of a hub, which a run file has where others have a path."""

from __future__ import annotations

PREFIX = "hub:"


def is_hub_word(word: str) -> bool:
    return word.startswith(PREFIX)
