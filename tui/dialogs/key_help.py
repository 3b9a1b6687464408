"""Shows the help of a view: its keys, from the registry of actions, and the meanings of its short words."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events
from textual.app import ComposeResult

from tui.dialogs.modal import Modal
from tui.model.actions import Action, sign
from tui.model.styled_text import Line, Span, Tone, cut, fitted, width_of
from tui.widgets.lines import Lines

AROUND = 4
"""The number of columns that border and padding take."""


class KeyHelp(Modal[None]):
    DEFAULT_CSS = """
    KeyHelp { align: center middle; background: $background 60%; }
    KeyHelp > Lines { max-width: 100%; height: auto; border: round $primary; padding: 0 1;
                   background: $surface; }
    KeyHelp.-ascii > Lines { border: ascii $primary; }
    """

    def __init__(self, sections: Iterable[tuple[str, Iterable[Action]]], words: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__()
        self._lines: list[Line] = []
        self._top = 0
        for title, actions in sections:
            self._lines.append((Span(title, Tone.ACCENT),))
            for action in actions:
                keys = " ".join(sign(key) for key in action.keys) or ":"
                head = (Span(f"  {fitted(keys, 12)}", Tone.STRONG), Span(f"{fitted(action.title, 15)}"))
                self._lines.append((*head, Span(action.help, Tone.DIM)))
        if meanings := [(Span(f"  {fitted(word, 27)}", Tone.STRONG), Span(means, Tone.DIM)) for word, means in words]:
            self._lines += [(Span("what is shown", Tone.ACCENT),), *meanings]

    def compose(self) -> ComposeResult:
        lines = Lines(self._shown)
        # As wide as its longest sentence; sentences are cut if there is less room.
        lines.styles.width = max(map(width_of, self._lines), default=0) + AROUND
        yield lines

    def on_mount(self) -> None:
        self.set_class(self.app.has_class("-ascii"), "-ascii")
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        self.query_one(Lines).styles.height = min(len(self._lines) + 2, self.app.size.height)

    def _shown(self, width: int, height: int) -> list[Line]:
        self._top = max(0, min(self._top, len(self._lines) - height))
        shown = [cut(line, width) for line in self._lines[self._top : self._top + height]]
        if self._top + height < len(self._lines):
            shown[-1] = (Span("  ↓ more", Tone.DIM),)
        return shown

    def on_key(self, event: events.Key) -> None:
        event.stop()
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10}
        if event.key in steps:
            self._top = max(0, self._top + steps[event.key])
            self.query_one(Lines).repaint()
        else:
            self.answer(None)
