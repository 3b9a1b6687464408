"""What all questions share.

Invariant: a question is answered once. Keys that were typed behind the answer, before it has left the screen, are for
nobody.
"""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

A = TypeVar("A")


class Modal(ModalScreen[A]):
    def answer(self, answer: A | None) -> None:
        """Leave with it; only the first one counts."""
        if self.is_current:
            self.dismiss(answer)
