"""What the console asks a person: which action, which unit, which value, for how long.

Invariants: a dialog only collects and checks what is typed; what is to be done about the answer is an intent, and goes
the way of all intents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl.errors import AgentrlError
from agentrl.formatting.amounts import seconds
from agentrl.formatting.row_text import allowed
from agentrl.protocol.rows import AlertRow, AuditRow, KnobRow
from tui.dialogs.form import Field, Form, Question, Values
from tui.dialogs.key_help import KeyHelp
from tui.dialogs.palette import Choice, Palette
from tui.model import actions, command_line, detail_lines, knob_table, pending_commands
from tui.model.data_tables import told_of
from tui.model.effect_text import effect_sentence
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Tone

if TYPE_CHECKING:
    from tui.app import Console

_UNIT = "unit "


class Prompts:
    """Every dialog but the consent to an act, which belongs to acting."""

    def __init__(self, console: Console) -> None:
        self._console = console

    # ---- which action ----

    def do_help(self) -> None:
        console = self._console
        possible = console.possible()
        name = console.view.name_in_registry
        own = [a for a in possible if name in a.where]
        everywhere = [a for a in possible if actions.EVERYWHERE in a.where]
        sections = [(name, own), ("moving", console.moves()), ("everywhere", everywhere)]
        console.push_screen(KeyHelp([(title, listed) for title, listed in sections if listed], console.view.vocabulary))

    def do_palette(self) -> None:
        console = self._console
        here = [a for a in console.possible() if a.id not in ("palette", "back")]
        # Lists without a digit are opened from anywhere, though their key is one view's.
        lists = [a for a in console.registry if a.id.startswith("list.") and a not in here and console.may(a)]
        choices = [Choice(a.id, a.title, actions.sign(a.keys[0]) if a.keys else "", a.help) for a in here]
        choices += [Choice(a.id, a.title, "", a.help) for a in lists]

        def why_not(text: str) -> str | None:
            try:
                command_line.parse(text, console.mirror)
            except AgentrlError as error:
                return str(error) if command_line.begins_as_command(text) else None
            return ""

        hint = "an action, a unit, or a command: scale web +1 · restart web-0 · tune KNOB VALUE"
        console.push_screen(
            Palette([*choices, *self._units(_UNIT)], hint=hint, typed=why_not, verbs=command_line.VERBS), self._chosen
        )

    def _chosen(self, answer: str | None) -> None:
        console = self._console
        if answer is None:
            return
        if answer.startswith(":"):
            self._typed_line(answer[1:])
        elif answer.startswith(_UNIT):
            console.navigation.open_unit(answer.removeprefix(_UNIT))
        else:
            console.do(next(action for action in console.registry if action.id == answer))

    def _typed_line(self, text: str) -> None:
        console = self._console
        try:
            meaning = command_line.parse(text, console.mirror)
        except AgentrlError as error:
            console.say(str(error), Tone.WARN)
            return
        if isinstance(meaning, PendingCommand):
            console.perform(meaning)
        else:
            console.navigation.look(meaning)

    # ---- which unit ----

    def choose_unit(self, then: Callable[[str], None]) -> None:
        choices = self._units("")
        self._console.push_screen(Palette(choices, hint="which unit"), lambda unit: then(unit) if unit else None)

    # ---- which record ----

    def choose_record(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Open the only one, or the one that is chosen."""
        console = self._console
        if not rows:
            console.say("No record is named here.")
        elif len(rows) == 1:
            console.navigation.open_record(str(rows[0]["id"]))
        else:
            # The end of an id tells one from the other.
            choices = [Choice(id := str(row["id"]), id.rpartition("/")[2], "", told_of(row)) for row in rows]
            console.push_screen(
                Palette(choices, hint="which record"), lambda id: console.navigation.open_record(id) if id else None
            )

    def _units(self, prefix: str) -> list[Choice]:
        rows = self._console.mirror.units
        return [Choice(f"{prefix}{row.unit}", row.unit, "", f"{row.state.value} · {row.status}") for row in rows]

    # ---- which value ----

    def ask_value(self, row: KnobRow, history: Sequence[AuditRow], value: str = "") -> None:
        """A new value of a knob, with what it would do. At once: what is typed next is for the field."""
        console = self._console

        async def preview(values: Values) -> str:
            intent = _tuned(row, values)
            found = await console.connection.client.preview(intent.command, intent.args)
            return f"{found.tier.name.lower()}: {effect_sentence(found.effect, console.mirror)}"

        def then(values: Values | None) -> None:
            if values is not None:
                console.perform(_tuned(row, values))

        lines = detail_lines.of_knob(row, history[-3:], console.mirror, 72)
        fields = (Field("new value", value, hint=f"it is {row.value} now"), Field("note", hint="why"))
        question = Question(row.name, tuple(lines), fields, "change it", partial(_wrong_value, row), preview)
        console.push_screen(Form(question), then)

    # ---- for how long ----

    def ask_silence(self, row: AlertRow) -> None:
        def check(values: Values) -> str:
            try:
                seconds(values[0].strip())
            except AgentrlError as wrong:
                return str(wrong)
            return ""

        def then(values: Values | None) -> None:
            if values is not None:
                self._console.perform(pending_commands.silence(row, seconds(values[0].strip()), values[1].strip()))

        fields = (Field("for", "1h", "15m, 2h, 1d; 0 ends it"), Field("why", hint="for those who look later"))
        question = Question(f"Send nothing about {row.id}", (), fields, "silence it", check)
        self._console.push_screen(Form(question), then)


def _wrong_value(row: KnobRow, values: Values) -> str:
    """What is wrong with a new value and its note; empty if nothing is."""
    if not values[0].strip():
        return f"Type a value: {allowed(row)}."
    value, wrong = knob_table.meant(row, values[0])
    if wrong:
        return wrong
    if value == row.value:
        return "This is its value now."
    return "A scientific knob wants a note." if row.scientific and not values[1].strip() else ""


def _tuned(row: KnobRow, values: Values) -> PendingCommand:
    value, _ = knob_table.meant(row, values[0])
    return pending_commands.tune(row, value, values[1].strip())
