"""Builds pending commands: the arguments of a command, fixed at the key press, before preview and consent.

Invariants:
- A pending command names its target by identity and, for a process, by the incarnation on the screen.
- Its title, its command line and its undo follow from the arguments and from the row that the person saw.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.protocol import control_commands, data_changes, grammar
from agentrl.protocol.commands import CommandSpec, act_of
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.message_base import Args
from agentrl.protocol.rows import AnyRow, GroupRow, KnobRow, UnitRow


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """One command, ready to be previewed and sent."""

    args: Args
    seen: AnyRow | None = None
    """The row of its target that the person saw."""
    preview_only: bool = False
    """Its effect is shown, and nothing is sent."""
    takes_back: bool = False
    """It is the undo of another command, so it has none itself."""

    @property
    def spec(self) -> CommandSpec:
        return act_of(self.args)

    @property
    def command(self) -> str:
        return self.spec.name

    @property
    def what(self) -> str:
        """A short description: `restart web-0.7`."""
        return self.args.title(self.seen)

    @property
    def undo(self) -> PendingCommand | None:
        """The command that reverses it, if it is known beforehand."""
        args = None if self.takes_back else self.args.undo(self.seen)
        return None if args is None else PendingCommand(args, self.seen, takes_back=True)

    def typed(self, target: Iterable[str] = ()) -> str:
        """The command line with the same effect."""
        return line(grammar.words(self.command, self.args), target)


def scale(row: GroupRow, to: int, seen: int | None = None) -> PendingCommand:
    """Names the count that the person saw, on the screen if not in `seen`: the command and its undo are refused if
    another person has scaled the group since.
    """
    return PendingCommand(control_commands.Scale(row.name, to=to, seen=row.desired if seen is None else seen), row)


def drain(row: UnitRow, *, cancel: bool = False) -> PendingCommand:
    args = control_commands.DrainUnits(unit=row.unit, incarnation=row.incarnation, cancel=cancel)
    return PendingCommand(args, row)


def restart(row: UnitRow, *, now: bool = False) -> PendingCommand:
    return PendingCommand(control_commands.Restart(row.unit, row.incarnation, now), row)


def restart_group(row: GroupRow, *, now: bool = False) -> PendingCommand:
    return PendingCommand(control_commands.Restart(row.name, 0, now), row)


def stop(row: UnitRow, *, now: bool = False) -> PendingCommand:
    return PendingCommand(control_commands.Stop(row.unit, row.incarnation, now), row)


def confirm_dead(row: UnitRow) -> PendingCommand:
    return PendingCommand(control_commands.ForceStopped(row.unit, row.incarnation), row)


def tune(row: KnobRow, value: KnobValue, note: str = "", seen: int | None = None) -> PendingCommand:
    """Names the revision that the person saw, on the screen if not in `seen`: the command is refused if another person
    has changed the knob since.
    """
    return PendingCommand(control_commands.Tune(row.name, value, row.revision if seen is None else seen, note), row)


def undo_tune(row: KnobRow, seen: int | None = None) -> PendingCommand:
    return PendingCommand(control_commands.UndoTune(row.name, row.revision if seen is None else seen), row)


def exclude_since_canary(engine: UnitRow, note: str = "") -> PendingCommand:
    name = f"{engine.unit}.{engine.incarnation}"
    return PendingCommand(data_changes.ExcludeRecords(made_by=name, since_canary=True, note=note), engine)


def line(words: Iterable[str], target: Iterable[str] = ()) -> str:
    """A command line for the same run."""
    return shlex.join(["agentrl", *words, *target])
