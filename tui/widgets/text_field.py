"""The field that everything is typed into.

Invariant: what is typed takes effect in the order in which it was typed, however many keys come at once.
"""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.widgets import Input

EDITING = {
    key: binding.action
    for binding in Binding.make_bindings(Input.BINDINGS)
    for key in binding.key.split(",")
    if binding.action != "submit"
} | {"alt+b": "cursor_left_word", "alt+f": "cursor_right_word"}
"""What keys do to what is typed. Enter and the arrows up and down are for the dialog."""


class TextField(Input):
    def edits_with(self, key: str) -> bool:
        """Whether the key edits what is typed, besides writing itself."""
        return key in EDITING

    async def on_key(self, event: events.Key) -> None:
        # Textual hands such a key to all parents before its action is done, and the letters behind it overtake it.
        if self.edits_with(event.key):
            event.stop()
            event.prevent_default()
            await self.run_action(EDITING[event.key])
