"""Defines the base class of all dialogs.

Invariants:
- A dialog is answered once.
- Keys that arrive between the answer and its disappearance are dropped.
"""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

A = TypeVar("A")


class Modal(ModalScreen[A]):
    def answer(self, answer: A | None) -> None:
        """Close the dialog with this answer; only the first one counts."""
        if self.is_current:
            self.dismiss(answer)
