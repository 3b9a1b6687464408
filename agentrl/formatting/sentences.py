"""Parts of sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5
"""The most sentences of a kind that a message shows."""


def ended(text: str) -> str:
    """The text with exactly one full stop."""
    shown = text.rstrip()
    return shown if shown.endswith((".", "?", "!", "…")) else f"{shown}."


def few(sentences: Sequence[str]) -> tuple[str, ...]:
    """The first of many sentences, and how many more there are."""
    more = len(sentences) - SHOWN
    return (*sentences[:SHOWN], f"{more} more likewise") if more > 0 else tuple(sentences)
