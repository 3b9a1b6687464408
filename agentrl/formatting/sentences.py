"""Sentences that others wrote, as parts of ours. Pure."""

from __future__ import annotations


def ended(text: str) -> str:
    """With one full stop, whether whoever wrote it set one or not."""
    shown = text.rstrip()
    return shown if shown.endswith((".", "?", "!", "…")) else f"{shown}."


def irrevocable(reverse: str) -> str:
    """Of an act that loses something: whether a command, if there is one, takes back the rest of it."""
    return "What is lost stays lost; the rest can be taken back." if reverse else "It cannot be taken back."
