"""Parts of sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5
"""The most sentences of a kind that a message shows."""


def ended(text: str) -> str:
    """The text with exactly one full stop."""
    shown = text.rstrip()
    return shown if shown.endswith((".", "?", "!", "…")) else f"{shown}."


def irrevocable(reverse: str) -> str:
    """A sentence on an act that loses something, and on the part of it that the `reverse` command can take back."""
    return "What is lost stays lost; the rest can be taken back." if reverse else "It cannot be taken back."


def few(sentences: Sequence[str]) -> tuple[str, ...]:
    """The first of many sentences, and how many more there are."""
    more = len(sentences) - SHOWN
    return (*sentences[:SHOWN], f"{more} more likewise") if more > 0 else tuple(sentences)
