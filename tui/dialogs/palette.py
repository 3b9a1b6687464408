"""The palette: any action by its name, any unit by its name, or a command line as one types it in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input

from tui.dialogs.modal import Modal
from tui.model.ink import Line, Span, Tone, cut, fitted, span
from tui.widgets.entry import Entry
from tui.widgets.lines import Drawn, Painted

MOST = 14


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of the palette."""

    id: str
    title: str
    keys: str = ""
    help: str = ""


class Matches(Painted):
    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Choice] = []
        self.at = 0

    def drawing(self, width: int, height: int) -> list[Drawn]:
        start = max(0, self.at - height + 1)
        drawn: list[Drawn] = []
        for place, choice in enumerate(self.choices[start : start + height], start):
            line: Line = (
                Span("▸ " if place == self.at else "  ", Tone.ACCENT),
                span(fitted(choice.title, 24), Tone.STRONG),
                Span(" "),
                Span(fitted(choice.keys, 5), Tone.ACCENT),
                span(choice.help, Tone.DIM),
            )
            drawn.append((cut(line, width), "cursor" if place == self.at else ""))
        return drawn


class Palette(Modal[str | None]):
    """Answers with the id of what was chosen, or with a line that begins with a colon: what was typed."""

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

    def __init__(self, choices: Iterable[Choice], *, hint: str, typed: Callable[[str], bool] | None = None) -> None:
        super().__init__()
        self._choices = list(choices)
        self._hint = hint
        self._typed = typed
        """Whether a line may be handed on as it was typed."""

    def compose(self) -> ComposeResult:
        self._matches = Matches()
        with Vertical(id="box"):
            yield Entry(placeholder=self._hint)
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
        self._matches.choices = [choice for _, choice in sorted(ranked, key=lambda pair: pair[0])]
        self._matches.at = 0
        self._matches.repaint()

    def on_key(self, event: events.Key) -> None:
        steps = {"up": -1, "down": 1, "pageup": -MOST, "pagedown": MOST}
        if event.key == "escape":
            event.stop()
            self.answer(None)
        elif event.key in steps:
            event.stop()
            last = len(self._matches.choices) - 1
            self._matches.at = max(0, min(last, self._matches.at + steps[event.key]))
            self._matches.repaint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if self._typed is not None and text and (not self._matches.choices or self._typed(text)):
            self.answer(f":{text}")
        elif self._matches.choices:
            self.answer(self._matches.choices[self._matches.at].id)
