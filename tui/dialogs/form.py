"""Defines a form with text above and fields below: a consent, a name to type, a note, a value.

Invariants:
- A form has no effect before the person confirms.
- Escape always leaves without an effect.
- Input is checked while it is typed, and its effect is queried and shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from agentrl.errors import AgentrlError
from agentrl.formatting.amounts import counted
from agentrl.formatting.safe_text import sanitise
from tui.dialogs.modal import Modal
from tui.model.styled_text import Line, Span, Tone, cut, folded, span, wrapped
from tui.widgets.keyboard import TextField
from tui.widgets.lines import Lines

PREVIEW_AFTER_S = 0.15
WIDTH = 76
INNER = WIDTH - 4


@dataclass(frozen=True, slots=True)
class Field:
    title: str
    value: str = ""
    hint: str = ""
    replaced: bool = False
    """The value is selected, so that the first key replaces it; a move of the cursor keeps it."""


Values = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Content of a form."""

    title: str
    lines: tuple[Line, ...] = ()
    fields: tuple[Field, ...] = ()
    go_on: str = "do it"
    check: Callable[[Values], str] = lambda values: ""
    """Returns the fault of the values; an empty string if they are valid."""
    preview: Callable[[Values], Awaitable[str]] | None = None
    """The effect of the values, in a sentence."""
    tone: Tone = Tone.ACCENT


def _constant(line: Line) -> Callable[[int, int], list[Line]]:
    return lambda width, height: [line]


class Form(Modal[Values | None]):
    """Returns the values of the fields, or None if it was left."""

    AUTO_FOCUS = "Input"
    DEFAULT_CSS = """
    Form { align: center middle; background: $background 60%; }
    Form > #box { width: 76; max-width: 100%; height: auto; max-height: 100%; border: round $primary; padding: 0 1;
                  background: $surface; }
    Form.-ascii > #box { border: ascii $primary; }
    Form Lines { height: auto; }
    Form .field { height: 1; }
    Form .field Lines { width: 12; height: 1; }
    Form Input { border: none; height: 1; padding: 0; width: 1fr; background: $panel; }
    Form Input:focus { border: none; }
    """

    def __init__(self, question: Question) -> None:
        super().__init__()
        self._question = question
        self._verdict: tuple[str, Tone] = ("", Tone.DIM)
        self._edits = 0
        self._body: list[Line] = [(span(question.title, question.tone),), (), *question.lines]

    @property
    def awaits_focus(self) -> bool:
        # Keys typed before a question has appeared must not answer it later.
        return bool(self._question.fields) and super().awaits_focus

    def compose(self) -> ComposeResult:
        question = self._question
        with Vertical(id="box"):
            yield Lines(self._above, id="above")
            for number, field in enumerate(question.fields):
                with Horizontal(classes="field"):
                    yield Lines(_constant((Span(field.title, Tone.DIM),)))
                    hint = sanitise(field.hint)
                    yield TextField(field.value, placeholder=hint, id=f"field-{number}", select_on_focus=field.replaced)
            yield Lines(self._below, id="below")

    def on_mount(self) -> None:
        self.set_class(self.app.has_class("-ascii"), "-ascii")
        self._fit()
        self._look()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        """Cut the text above, so that fields and keys fit on any terminal, and give the preview the rows it needs."""
        free = self.app.size.height - 2 - len(self._question.fields)
        text = wrapped(self._verdict[0], min(INNER, self.app.size.width - WIDTH + INNER))
        below = max(6 if self._question.preview else 3, min(len(text) + 2, free - len(self._body) - 1))
        room = free - below
        self.query_one("#below", Lines).styles.height = below
        self.query_one("#above", Lines).styles.height = max(1, min(len(self._body) + 1, room))

    def values(self) -> Values:
        return tuple(field.value for field in self.query(Input))

    def _above(self, width: int, height: int) -> list[Line]:
        shown = [cut(line, width) for line in self._body[:height]]
        if len(self._body) > height:
            shown[-1] = (Span(f"… {counted(len(self._body) - height + 1, 'more lines')}", Tone.DIM),)
        return shown

    def _below(self, width: int, height: int) -> list[Line]:
        text, tone = self._verdict
        message = [cut(line, width) for line in folded((Span(text, tone),), width, height - 2)] if text else []
        keys: Line = (Span("enter", Tone.ACCENT), Span(f" {self._question.go_on}   ", Tone.DIM))
        keys += (Span("esc", Tone.ACCENT), Span(" leave", Tone.DIM))
        return [*message, *[()] * (height - 1 - len(message)), keys]

    def _say(self, text: str, tone: Tone) -> None:
        self._verdict = (span(text).text, tone)
        self._fit()
        self.query_one("#below", Lines).repaint()

    # ---- while something is typed ----

    def on_input_changed(self, _: Input.Changed) -> None:
        self._look()

    def _look(self) -> None:
        self._edits += 1
        wrong = self._question.check(self.values())
        if wrong:
            self._say(wrong, Tone.WARN if any(self.values()) else Tone.DIM)
        elif self._question.preview is None:
            self._say("", Tone.DIM)
        else:
            self.set_timer(PREVIEW_AFTER_S, lambda edit=self._edits: self._ask(edit))

    def _ask(self, edit: int) -> None:
        if edit == self._edits:
            # A callable, so that a query replaced before it begins leaves no coroutine behind.
            work: Callable[[], Awaitable[None]] = partial(self._preview, edit)
            self.run_worker(work, group="preview", exclusive=True)

    async def _preview(self, edit: int) -> None:
        assert self._question.preview is not None
        try:
            text, tone = await self._question.preview(self.values()), Tone.PLAIN
        except AgentrlError as error:
            text, tone = str(error), Tone.BAD
        if edit == self._edits and self.is_attached:
            self._say(text, tone)

    # ---- the answer ----

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._go_on()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            self.answer(None)
        elif not self._question.fields and event.key in ("enter", "y"):
            event.stop()
            self._go_on()
        elif not self._question.fields and event.key in ("n", "q"):
            event.stop()
            self.answer(None)

    def _go_on(self) -> None:
        wrong = self._question.check(self.values())
        if wrong:
            self._say(wrong, Tone.BAD)
        else:
            self.answer(self.values())


def with_note(sentence: str) -> Form:
    """A form for a command on records: it asks for a note before the preview."""
    note = Field("note", hint="why; kept with them, may be empty")
    return Form(Question(f"{sentence[0].upper()}{sentence[1:]}", (), (note,), "preview it"))
