"""Shortens long texts: to both ends with a line between them that says how much is missing, or to one line."""

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


def one_line(text: str, most_chars: int) -> str:
    """A text of a stranger for a sentence: its beginning, without what a terminal or a store would act on."""
    cut = text if len(text) <= most_chars else f"{text[:most_chars]}..."
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
