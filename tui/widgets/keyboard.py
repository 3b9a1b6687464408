"""Defines the text field of all dialogs and the filter, and reads keys with alt held.

Invariants:
- Keys take effect in the order in which they were typed, even if many arrive at once.
- Terminals such as tmux report an escape and a key soon after it as that key with alt held. Textual reads some of these
  as other signs; `read_alt_keys` makes it read them as the key with alt held, so no key is lost.
"""

from __future__ import annotations

from typing import cast

from textual import _ansi_sequences, events
from textual.binding import Binding
from textual.widgets import Input

ALT = "alt+"
_READ_AS_OTHERS = (*"0123456789-=§", "b", "f")
"""Keys that Textual reads, behind an escape, as what a Mac types with alt or as ctrl with an arrow."""
EDITING = {
    key: binding.action
    for binding in Binding.make_bindings(Input.BINDINGS)
    for key in binding.key.split(",")
    if binding.action != "submit"
} | {"alt+b": "cursor_left_word", "alt+f": "cursor_right_word"}
"""Keys that edit the text. Enter and the arrows up and down are for the dialog."""


class TextField(Input):
    def edits_with(self, key: str) -> bool:
        """Whether the key edits the text, other than by inserting its own character."""
        return key in EDITING

    async def on_key(self, event: events.Key) -> None:
        # Textual gives such a key to all parents before its action is done, and the letters after it would overtake it.
        if self.edits_with(event.key):
            event.stop()
            event.prevent_default()
            await self.run_action(EDITING[event.key])


def read_alt_keys() -> None:
    sequences = cast("dict[str, object]", _ansi_sequences.ANSI_SEQUENCES_KEYS)
    for key in _READ_AS_OTHERS:
        sequences.pop(f"\x1b{key}", None)
