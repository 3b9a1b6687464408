"""Parses command lines that a person types or an alert suggests into pending commands and destinations.

Invariants:
- A line that is not understood completely does nothing and is answered with a sentence.
- A command has the same words and the same meaning as in a shell. `agentrl.protocol.grammar` reads both.
- Targets are looked up in the mirror, so a command names the incarnation that is on the screen.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from agentrl.errors import AgentrlError, UnknownNameError, UsageError
from agentrl.formatting.amounts import counted
from agentrl.formatting.names import nearest
from agentrl.protocol import control_commands, data_commands, grammar, tool_commands
from agentrl.protocol.commands import CommandSpec
from agentrl.protocol.message_base import Args
from agentrl.protocol.rows import AlertRow, GroupRow, KnobRow, UnitRow
from agentrl.protocol.words import PART, Incarnation, SettingValue, argument, option
from tui.model import pending_commands
from tui.model.mirror import Mirror
from tui.model.pending_commands import PendingCommand


@dataclass(frozen=True, slots=True)
class Destination:
    """A place of the console to go to."""

    view: str
    subject: str = ""
    earlier: int = 0
    """The incarnation of logs: how many before the present one, or its number."""
    filter: str = ""
    sort: str = ""


class Logs(Args, frozen=True):
    """`logs UNIT`, as far as the view of logs can show it."""

    unit: Annotated[str, argument("UNIT", Incarnation())]
    incarnation: Annotated[int, PART] = 0
    previous: bool = False
    follow: bool = False
    grep: Annotated[str, option("--grep", "-g", metavar="REGEX")] = ""


class Runs(Args, frozen=True):
    """`runs`: the list of runs."""


class ShowServer(Args, frozen=True):
    """`tools show SERVER`: its sandboxes and sessions."""

    server: str


_OWN = (
    grammar.syntax_of("logs", Logs, "logs"),
    grammar.syntax_of("runs", Runs, "runs"),
    grammar.syntax_of("tools show", ShowServer, "tools show"),
)
"""Lines of the shell that are not commands of the table, but have a view here."""
_VIEWS = {
    "status": "overview",
    "why": "why",
    "list_steps": "training",
    "accounting": "accounting",
    "list_evaluations": "evaluations",
    "other_models": "other-models",
    "list_keys": "keys",
    "list_tool_servers": "tools",
    "alerts": "alerts",
}
_FILTERED = {
    "list_tasks": "tasks",
    "list_checkpoints": "checkpoints",
    "list_reviews": "review",
    "tool_errors": "tool-errors",
}
"""Views that take the filter of the command line."""
_PAGES = {"show_record": "record", "show_task": "task", "show_step": "step", "show_checkpoint": "checkpoint"}
_ALONE = ("alerts", "checkpoints", "eval", "keys", "records", "review", "steps", "tasks", "tools")
"""Words that open their list without the word `list`."""
_OF_A_SHELL = {
    "--yes": "The console shows the effect and asks before it is dangerous.",
    "--json": "The console shows the answer on a screen.",
    "--no-color": "`agentrl tui` has options for colours.",
    "--no-wait": "The console never waits; the notice line shows how the operation ends.",
    "--timeout": "The console never waits; the notice line shows how the operation ends.",
}
"""Options that mean nothing here, and what the console does instead."""
VERBS = tuple(dict.fromkeys((*grammar.verbs(), *(own.verb[0] for own in _OWN))))
"""The first words of all lines."""


def parse(text: str, mirror: Mirror, target: Sequence[str] = ()) -> PendingCommand | Destination:
    """Parse a line. Raises an error with a sentence if it has no meaning here.

    `target`: the options with which a shell reaches the run of this console.
    """
    try:
        words = shlex.split(text)
    except ValueError as broken:
        raise UsageError(f"{text}: {broken}.") from None
    if words[:1] == ["agentrl"]:
        del words[0]
    if not words:
        raise UsageError(
            "Nothing was typed.", hint="Try `restart UNIT`, `scale GROUP +1`, `tune KNOB VALUE`, `logs UNIT`."
        )
    if words[0] not in VERBS:
        raise UsageError(
            f"The console has no verb {words[0]!r}.",
            hint=f"{_meant(words[0], VERBS)}`?` lists the keys; any other verb works in a shell.",
        )
    for own in _OWN:
        if tuple(words[: len(own.verb)]) == own.verb:
            args, shared = own.read(words[len(own.verb) :])
            _check_shared(shared, mirror, target)
            return _own_destination(args, mirror)
    if len(words) == 1 and words[0] in _ALONE:
        words.append("list")
    line = grammar.parse(words)
    _check_shared(line.shared, mirror, target)
    if not line.spec.mutates:
        return _destination(line.spec, line.args, mirror)
    pending = _Targets(mirror).pending(line.args)
    return dataclasses.replace(pending, preview_only="--dry-run" in line.shared)


def begins_as_command(text: str) -> bool:
    return text.removeprefix("agentrl ").split(maxsplit=1)[:1] in [[verb] for verb in VERBS]


def _check_shared(shared: Mapping[str, str], mirror: Mirror, target: Sequence[str]) -> None:
    for name, value in shared.items():
        name = "--yes" if name == "-y" else name
        if name in _OF_A_SHELL:
            raise UsageError(f"{name} belongs to a shell.", hint=f"{_OF_A_SHELL[name]} Leave {name} out.")
        here = (name, value) in itertools.pairwise(target) or (name == "--run" and value == mirror.name)
        if name in ("--run", "--key") and not here:
            raise UsageError(
                f"This console shows the run {mirror.name}, and not that of {name} {value}.",
                hint=f"Leave {name} out, or open the other run: `runs` lists them.",
            )


def _own_destination(args: Args, mirror: Mirror) -> Destination:
    match args:
        case Logs(unit=unit, incarnation=incarnation, previous=previous, grep=grep):
            if mirror.unit(unit) is None:
                raise _Targets(mirror).no_unit(unit, unit)
            if incarnation and previous:
                raise UsageError(f"{unit}.{incarnation} names an incarnation already.", hint="Leave --previous out.")
            return Destination("logs", unit, incarnation or -int(previous), filter=grep)
        case ShowServer(server=server):
            return Destination("tools", server)
    return Destination("runs")


def _destination(spec: CommandSpec, args: Args, mirror: Mirror) -> Destination:
    """The view that shows the answer of a query. A view that cannot do all that the line asks for is not opened."""
    match args:
        case control_commands.Events(kinds=(kind,)):
            honoured, place = {"kinds"}, Destination("events", kind)
        case control_commands.Events():
            honoured, place = set[str](), Destination("events")
        case control_commands.Knobs(name=name):
            honoured, place = {"name"}, Destination("tuning", _Targets(mirror).knob(name).name if name else "")
        case tool_commands.ListSandboxes(server=server) | tool_commands.ListToolSessions(server=server):
            honoured, place = {"server"}, Destination("tools", server)
        case data_commands.ShowOne(id=id) | data_commands.ShowRecord(id=id) if spec.name in _PAGES:
            honoured, place = {"id"}, Destination(_PAGES[spec.name], id)
        case data_commands.ListRows(filter=filter, sort=sort) if spec.name == "list_records":
            honoured, place = {"filter", "sort"}, Destination("records", filter=filter, sort=sort)
        case _ if spec.name in _FILTERED:
            honoured, place = {"filter"}, Destination(_FILTERED[spec.name], filter=getattr(args, "filter", ""))
        case _ if spec.name in _VIEWS:
            honoured, place = set[str](), Destination(_VIEWS[spec.name])
        case _:
            raise UsageError(f"The console has no view for `{spec.cli}`.", hint="It works in a shell.")
    for slot in grammar.syntaxes()[spec.name].slots:
        if slot.field not in honoured and getattr(args, slot.field) != slot.default:
            raise UsageError(
                f"The view of `{spec.cli}` does not take {slot.names[0]}.",
                hint=f"Leave {slot.names[0]} out, or use a shell.",
            )
    return place


class _Targets:
    """Finds what a command names in the mirror."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def pending(self, args: Args) -> PendingCommand:
        match args:
            case control_commands.Scale():
                return self._scale(args)
            case control_commands.DrainUnits(unit=unit) if unit:
                row = self._unit(unit, args.incarnation)
                return pending_commands.drain(row, cancel=args.cancel)
            case control_commands.Restart():
                if group := self._mirror.group(args.target):
                    return pending_commands.restart_group(group, now=args.now)
                return pending_commands.restart(self._unit(args.target, args.incarnation), now=args.now)
            case control_commands.Stop():
                return pending_commands.stop(self._unit(args.unit, args.incarnation), now=args.now)
            case control_commands.ForceStopped():
                return pending_commands.confirm_dead(self._unit(args.unit, args.incarnation))
            case control_commands.Pause(target=target) | control_commands.Resume(target=target):
                if target != "run" and not self._mirror.group(target):
                    self._unit(target, 0)
            case control_commands.CollectStacks():
                for name in args.units:
                    self._unit(name, 0)
            case control_commands.Tune():
                return self._tune(args)
            case control_commands.UndoTune():
                return pending_commands.undo_tune(self.knob(args.name), args.seen_revision)
            case control_commands.Acknowledge() | control_commands.Silence():
                self._alert(args.id)
            case tool_commands.ExecInSandbox():
                raise UsageError("The console does not show what a program in a sandbox writes.", hint="Use a shell.")
        return PendingCommand(args)

    def _unit(self, name: str, incarnation: int) -> UnitRow:
        row = self._mirror.unit(name)
        if row is None:
            raise self.no_unit(f"{name}.{incarnation}" if incarnation else name, name)
        if incarnation and incarnation != row.incarnation:
            raise UnknownNameError(f"{name}.{incarnation} is gone: {name} lives as {name}.{row.incarnation}.")
        return row

    def no_unit(self, name: str, plain: str) -> UnknownNameError:
        meant = _meant(plain, [unit.unit for unit in self._mirror.of(UnitRow)])
        return UnknownNameError(f"There is no unit named {name}.", hint=meant.strip())

    def _group(self, name: str) -> GroupRow:
        row = self._mirror.group(name)
        if row is None:
            groups = [group.name for group in self._mirror.groups]
            raise UnknownNameError(f"There is no group named {name}.", hint=_meant(name, groups).strip())
        return row

    def _scale(self, args: control_commands.Scale) -> PendingCommand:
        row = self._group(args.group)
        to = row.desired + (args.by or 0) if args.to is None else args.to
        if to < 0:
            raise UsageError(f"{row.name} has {counted(row.desired, 'units')}; it cannot have {to}.")
        return pending_commands.scale(row, to, args.seen)

    def knob(self, name: str) -> KnobRow:
        row = self._mirror.get(f"knob/{name}")
        if not isinstance(row, KnobRow):
            meant = _meant(name, [knob.name for knob in self._mirror.of(KnobRow)])
            raise UnknownNameError(f"There is no knob named {name}.", hint=f"{meant}5 lists them.")
        return row

    def _tune(self, args: control_commands.Tune) -> PendingCommand:
        row = self.knob(args.name)
        value = row.verified().parse(SettingValue().text(args.value))
        return pending_commands.tune(row, value, args.note, args.seen_revision)

    def _alert(self, id: str) -> None:
        if not isinstance(self._mirror.get(f"alert/{id}"), AlertRow):
            raise UnknownNameError(f"There is no alert {id!r}.", hint="4 lists them.")


def _meant(name: str, known: Iterable[str]) -> str:
    """`Did you mean web-0? ` if a known name is close; else an empty string."""
    near = nearest(name, known)
    return f"Did you mean {near}? " if near else ""


def parse_cure(row: AlertRow, mirror: Mirror) -> PendingCommand | Destination | None:
    """Parse the command that an alert suggests. Returns None if it has to be run in a shell."""
    try:
        return parse(row.suggest, mirror) if row.suggest else None
    except AgentrlError:
        return None
