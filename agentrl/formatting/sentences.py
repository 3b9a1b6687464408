"""Parts of sentences. Pure."""

from __future__ import annotations


def ended(text: str) -> str:
    """The text with exactly one full stop."""
    shown = text.rstrip()
    return shown if shown.endswith((".", "?", "!", "…")) else f"{shown}."


def irrevocable(reverse: str) -> str:
    """Whether an act that loses something can be partly taken back by the `reverse` command."""
    return "What is lost stays lost; the rest can be taken back." if reverse else "It cannot be taken back."
