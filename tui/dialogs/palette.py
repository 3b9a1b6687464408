"""Defines the palette, which finds an action or a unit by its name, or takes a command line as in a shell."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input

from tui.dialogs.modal import Modal
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Span, Tone, cut, fitted, span
from tui.widgets.keyboard import TextField
from tui.widgets.lines import Drawn, Painted

MOST = 14
MOST_NEAR = 3
"""The number of similar names that are suggested."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of the palette."""

    id: str
    title: str
    keys: str = ""
    help: str = ""


def unit_choices(mirror: Mirror, prefix: str = "") -> list[Choice]:
    """All units of the run; `prefix` is put before their ids."""
    return [Choice(f"{prefix}{row.unit}", row.unit, "", f"{row.state.value} · {row.status}") for row in mirror.units]


class Matches(Painted):
    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Choice] = []
        self.at = 0
        """Below 0 while no choice is selected: a merely similar name is never chosen by enter alone."""
        self.message = ""

    def drawing(self, width: int, height: int) -> list[Drawn]:
        drawn: list[Drawn] = [(cut((span(self.message, Tone.WARN),), width), "")] if self.message else []
        height -= len(drawn)
        start = max(0, self.at - height + 1)
        for place, choice in enumerate(self.choices[start : start + height], start):
            line: Line = (
                Span("▸ " if place == self.at else "  ", Tone.ACCENT),
                span(fitted(choice.title, 24), Tone.STRONG),
                Span(" "),
                Span(fitted(choice.keys, 6), Tone.ACCENT),
                span(choice.help, Tone.DIM),
            )
            drawn.append((cut(line, width), "cursor" if place == self.at else ""))
        return drawn


class Palette(Modal[str | None]):
    """Returns the id of the choice, or the typed line with a colon before it."""

    AUTO_FOCUS = "Input"
    DEFAULT_CSS = """
    Palette { align: center top; background: $background 60%; }
    Palette > #box { width: 84; max-width: 100%; height: auto; border: round $primary; padding: 0 1;
                     background: $surface; margin-top: 2; }
    Palette.-ascii > #box { border: ascii $primary; }
    Palette Input { border: none; height: 1; padding: 0; background: $panel; }
    Palette Input:focus { border: none; }
    Palette Matches { height: 14; }
    """

    def __init__(
        self,
        choices: Iterable[Choice],
        *,
        hint: str,
        typed: Callable[[str], str | None] | None = None,
        verbs: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self._choices = list(choices)
        self._hint = hint
        self._verbs = tuple(verbs)
        """The first words of command lines."""
        self._typed = typed
        """The check of a typed line: an empty string for a command, the fault if it begins like a command, else
        None.
        """

    def compose(self) -> ComposeResult:
        self._matches = Matches()
        with Vertical(id="box"):
            yield TextField(placeholder=self._hint)
            yield self._matches

    def on_mount(self) -> None:
        self.set_class(self.app.has_class("-ascii"), "-ascii")
        self._seek("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._seek(event.value)

    def _seek(self, text: str) -> None:
        words = text.casefold().split()

        def rank(choice: Choice) -> int | None:
            title = choice.title.casefold()
            if not all(word in f"{title} {choice.help.casefold()}" for word in words):
                return None
            return 0 if title.startswith(text.casefold()) else 1 if all(word in title for word in words) else 2

        ranked = [(found, choice) for choice in self._choices if (found := rank(choice)) is not None]
        matches = self._matches
        matches.choices = [choice for _, choice in sorted(ranked, key=lambda pair: pair[0])]
        matches.at, matches.message = 0, ""
        if not matches.choices:
            self._explain(text)
        matches.repaint()

    def _explain(self, text: str) -> None:
        """Show why nothing matches, in place of an empty box."""
        matches, why_not = self._matches, self._typed(text) if self._typed is not None else None
        if why_not is None:
            matches.choices, matches.at = self._near(text), -1
            near = difflib.get_close_matches(text.partition(" ")[0], self._verbs, n=1)
            command = f" the command `{near[0]}`{', or:' if matches.choices else '?'}" if near else ":"
            meant = f" Did you mean{command}" if near or matches.choices else ""
            matches.message = f"Nothing is called {text.strip()!r}.{meant}"
        else:
            matches.message = why_not or "Enter does what is typed."

    def _near(self, text: str) -> list[Choice]:
        """Choices with similar names, the nearest first."""
        typed = text.casefold().split()
        words = sorted({word for choice in self._choices for word in choice.title.casefold().split()})
        meant = [difflib.get_close_matches(word, words, n=MOST_NEAR) for word in typed]
        nearest = [word for found in meant for word in found]

        def place(choice: Choice) -> int:
            title = choice.title.casefold().split()
            return min((nearest.index(word) for word in title if word in nearest), default=len(nearest))

        near = [choice for choice in self._choices if place(choice) < len(nearest)]
        return sorted(near, key=place)[:MOST_NEAR]

    def on_key(self, event: events.Key) -> None:
        steps = {"up": -1, "down": 1, "pageup": -MOST, "pagedown": MOST}
        if event.key == "escape":
            event.stop()
            self.answer(None)
        elif event.key in steps:
            event.stop()
            last = len(self._matches.choices) - 1
            self._matches.at = max(min(0, last), min(last, self._matches.at + steps[event.key]))
            self._matches.repaint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        meant = self._matches.choices[self._matches.at] if 0 <= self._matches.at < len(self._matches.choices) else None
        if self._typed is not None and text and (meant is None or self._typed(text) == ""):
            self.answer(f":{text}")
        elif meant is not None:
            self.answer(meant.id)
