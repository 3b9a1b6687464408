"""Defines one action of the console: its keys, labels, command and handler.

The registry of all actions is `tui/action_registry.py`; key map, footer, help, palette and the reference in the docs
come from it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.messages import Permission

EVERYWHERE = ""
UNDO = "undo"
VIEWS = ("overview", "fleet", "events", "alerts", "tuning", "logs", "records", "training", "runs")
"""The screens in the order of their digits."""


class When(enum.Enum):
    """Whether an action is offered for a live run, for a recording, or both."""

    ALWAYS = enum.auto()
    LIVE = enum.auto()
    PLAYBACK = enum.auto()


@dataclass(frozen=True, slots=True)
class Action:
    id: str
    keys: tuple[str, ...]
    """The keys by their names in Textual; the first one is shown."""
    title: str
    """A word or two, for footer and palette."""
    help: str
    run: Callable[..., None]
    """The handler; it gets its target and `args`."""
    args: tuple[Any, ...] = ()
    target: type[Any] | None = None
    """The class of the service that `run` belongs to; None where it belongs to the view that is shown."""
    where: tuple[str, ...] = (EVERYWHERE,)
    """Names of the views that offer it."""
    command: str = ""
    """The command that it sends, by its name in the table of commands."""
    footer: int = 0
    """Priority in a narrow footer; 0 is never shown there."""
    when: When = When.ALWAYS
    needs_rows: bool = False
    """Its key waits until the first rows or the first answer of the view have come."""
    shells: bool = False
    """True if it changes the run through the command line, so that no coordinator can refuse it."""

    @property
    def overtakes(self) -> bool:
        """Whether its key acts at once and drops keys that wait: one that means the same in every view, or a command,
        which is refused before it acts on rows that nobody saw.
        """
        return not self.needs_rows and (EVERYWHERE in self.where or bool(self.command))

    @property
    def changes_the_run(self) -> bool:
        """Whether the action or the undo that it carries out changes something."""
        return bool(self.command) or self.shells or self.id == UNDO

    def allowed(self, permission: Permission, *, read_only: bool, playback: bool = False) -> bool:
        if self.when is (When.LIVE if playback else When.PLAYBACK):
            return False
        if read_only and (self.command or self.shells):
            return False
        return not self.command or permission.allows(COMMANDS[self.command].permission)


def of_view(view: str, actions: Iterable[Action]) -> list[Action]:
    """The actions that a view offers; actions of this view alone come first."""
    own = [action for action in actions if view in action.where]
    return own + [action for action in actions if EVERYWHERE in action.where]


def rebound(keys: Mapping[str, tuple[str, ...]], actions: Iterable[Action]) -> tuple[Action, ...]:
    """The actions with a person's own keys."""
    return tuple(replace(action, keys=keys.get(action.id, action.keys)) for action in actions)


_SIGNS = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "asterisk": "*",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "left_parenthesis": "(",
    "right_parenthesis": ")",
    "full_stop": ".",
    "comma": ",",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "ctrl+b": "^b",
    "ctrl+f": "^f",
    "f12": "F12",
    "ctrl+p": "^p",
}


def sign(key: str) -> str:
    """A key as it is written on the keyboard."""
    return _SIGNS.get(key, key)
