"""Defines the base class of all dialogs.

Invariants:
- A dialog is answered once.
- Keys that arrive between the answer and the disappearance of the dialog are dropped, except a key that came with an
  escape.
- Keys for a field wait until the field has the focus.
"""

from __future__ import annotations

from typing import TypeVar

from textual.message import Message
from textual.screen import ModalScreen

A = TypeVar("A")


class Modal(ModalScreen[A]):
    _resumed = False

    class Resumed(Message):
        """The dialog takes keys."""

    @property
    def awaits_focus(self) -> bool:
        """Whether it has a field which cannot take keys yet."""
        return bool(self.AUTO_FOCUS) and not self._resumed

    def on_screen_resume(self) -> None:
        # Textual has set the focus before.
        self._resumed = True
        self.post_message(self.Resumed())

    def answer(self, answer: A | None) -> None:
        """Close the dialog with this answer; only the first one counts."""
        if self.is_current:
            self.dismiss(answer)
