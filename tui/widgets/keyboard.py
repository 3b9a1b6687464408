"""Defines the text field of all dialogs and the filter, and reads keys with alt held.

Invariants:
- Keys take effect in the order in which they were typed, even if many arrive at once.
- Terminals such as tmux report an escape and a key soon after it as that key with alt held. Textual reads some of these
  as other signs and some without the escape; `read_alt_keys` makes it read them as the key with alt held, so no key
  is lost.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from textual import _ansi_sequences, events
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, _character_to_key
from textual.widgets import Input

ALT = "alt+"
_BEGINS_A_SEQUENCE = "[O"
"""Signs behind an escape that begin the sequence of another key."""


class AltKey(NamedTuple):
    """The key that a sequence in Textual's table means."""

    value: str


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
        # Textual passes such a key to all parents before its action is done, so the letters after it would overtake it.
        if self.edits_with(event.key):
            event.stop()
            event.prevent_default()
            await self.run_action(EDITING[event.key])


def read_alt_keys() -> None:
    sequences = cast("dict[str, object]", _ansi_sequences.ANSI_SEQUENCES_KEYS)
    for sign in (*map(chr, range(ord(" "), 0x7F)), "\r"):
        if sign not in _BEGINS_A_SEQUENCE:
            sequences[f"\x1b{sign}"] = (AltKey(f"{ALT}{_name_of(sign)}"),)


def _name_of(sign: str) -> str:
    """The name of the key that types this sign."""
    if sign.isalnum():
        return sign
    name = "enter" if sign == "\r" else _character_to_key(sign)
    return KEY_NAME_REPLACEMENTS.get(name, name)
