"""Sentences that others wrote, as parts of ours. Pure."""

from __future__ import annotations


def ended(text: str) -> str:
    """With one full stop, whether whoever wrote it set one or not."""
    shown = text.rstrip()
    return shown if shown.endswith((".", "?", "!", "…")) else f"{shown}."
