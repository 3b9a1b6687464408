"""Shortens long texts: both ends stay, and a line in the middle says how much is missing."""

from __future__ import annotations


def gap(left_out: int) -> str:
    """The line that replaces the middle of a text."""
    return f"\n[... {left_out} characters left out ...]\n"


def both_ends(text: str, most_chars: int) -> str:
    """The text, or its two ends if it is longer."""
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    return text[:half] + gap(len(text) - 2 * half) + text[len(text) - half :]
