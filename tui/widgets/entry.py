"""The field that everything is typed into.

Invariant: what is typed takes effect in the order in which it was typed, however many keys come at once.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import Input


class Entry(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("alt+b", "cursor_left_word", show=False),
        Binding("alt+f", "cursor_right_word", show=False),
    ]

    def edits_with(self, key: str) -> bool:
        """Whether the key edits what is typed, besides writing itself."""
        return key in self._bindings.key_to_bindings

    async def on_key(self, event: events.Key) -> None:
        # Textual hands such a key to all parents before its action is done, and the letters behind it overtake it.
        if self.edits_with(event.key):
            event.stop()
            event.prevent_default()
            for binding in self._bindings.key_to_bindings[event.key]:
                await self.run_action(binding.action)
