"""Opens the command palette and the help, which list the possible actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentrl.errors import AgentrlError
from tui.command_runner import CommandRunner
from tui.console_interface import Host
from tui.dialogs.key_help import KeyHelp
from tui.dialogs.palette import Choice, Palette, unit_choices
from tui.model import command_line
from tui.model.actions import EVERYWHERE, Action, sign
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Tone
from tui.navigation import Navigation

_UNIT = "unit "


class PaletteApp(Host, Protocol):
    """The interface of the application that the palette needs besides `Host`."""

    @property
    def navigation(self) -> Navigation: ...
    @property
    def commands(self) -> CommandRunner: ...
    def allowed(self) -> Sequence[Action]: ...
    def possible(self) -> list[Action]: ...
    def moves(self) -> list[Action]: ...
    def do(self, action: Action) -> None: ...


class CommandPalette:
    def __init__(self, console: PaletteApp) -> None:
        self._console = console

    def do_help(self) -> None:
        console = self._console
        possible, view = console.possible(), console.navigation.view
        name = view.name_in_registry
        own = [action for action in possible if name in action.where]
        everywhere = [action for action in possible if EVERYWHERE in action.where]
        sections = [(name, own), ("moving", console.moves()), ("everywhere", everywhere)]
        console.push_screen(KeyHelp([(title, listed) for title, listed in sections if listed], view.vocabulary))

    def do_palette(self) -> None:
        console = self._console
        here = [action for action in console.possible() if action.id not in ("palette", "back")]
        # Lists without a digit can be opened from anywhere, although their key belongs to one view.
        lists = [action for action in console.allowed() if action.id.startswith("list.") and action not in here]
        choices = [Choice(a.id, a.title, sign(a.keys[0]) if a.keys else "", a.help) for a in here]
        choices += [Choice(a.id, a.title, "", a.help) for a in lists]

        def why_not(text: str) -> str | None:
            try:
                command_line.parse(text, console.mirror, console.settings.target_options)
            except AgentrlError as error:
                return str(error) if command_line.begins_as_command(text) else None
            return ""

        hint = "an action, a unit, or a command: scale web +1 · restart web-0 · tune KNOB VALUE"
        choices += unit_choices(console.mirror, _UNIT)
        console.push_screen(Palette(choices, hint=hint, typed=why_not, verbs=command_line.VERBS), self._chosen)

    def _chosen(self, answer: str | None) -> None:
        console = self._console
        if answer is None:
            return
        if answer.startswith(":"):
            self._run_line(answer[1:])
        elif answer.startswith(_UNIT):
            console.navigation.open_unit(answer.removeprefix(_UNIT))
        else:
            console.do(next(action for action in console.allowed() if action.id == answer))

    def _run_line(self, text: str) -> None:
        try:
            meaning = command_line.parse(text, self._console.mirror, self._console.settings.target_options)
        except AgentrlError as error:
            self._console.say(str(error), Tone.WARN)
            return
        if isinstance(meaning, PendingCommand):
            self._console.commands.perform(meaning)
        else:
            self._console.navigation.go_to(meaning)
