"""Parses command lines that a person types or an alert suggests into pending commands and destinations.

Invariants:
- A line that is not understood completely does nothing and is answered with a sentence.
- Targets are looked up in the mirror, so a command names the incarnation that is on the screen.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.errors import AgentrlError, UnknownNameError, UsageError
from agentrl.formatting.amounts import counted, seconds
from agentrl.formatting.names import nearest
from agentrl.protocol.rows import AlertRow, KnobRow, UnitRow
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


_VIEWS = {
    "status": "overview",
    "why": "why",
    "events": "events",
    "records": "records",
    "steps": "training",
    "runs": "runs",
    "accounting": "accounting",
    "eval": "evaluations",
    "models": "other-models",
}
VERBS = (
    *_VIEWS,
    *("scale", "drain", "restart", "stop", "pause", "resume", "stacks", "logs", "tune", "alerts"),
    *("tasks", "checkpoints", "review", "rollback", "keys", "tools", "down"),
)
"""The first words of all lines."""
VERDICTS = ("good", "bad", "golden", "none")


def parse(text: str, mirror: Mirror) -> PendingCommand | Destination:
    """Parse a line. Raises an error with a sentence if it has no meaning here."""
    try:
        words = shlex.split(text)
    except ValueError as broken:
        raise UsageError(f"{text}: {broken}.") from None
    if words[:1] == ["agentrl"]:
        del words[0]
    for option in ("--run", "--key"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    if not words:
        raise UsageError(
            "Nothing was typed.", hint="Try `restart UNIT`, `scale GROUP +1`, `tune KNOB VALUE`, `logs UNIT`."
        )
    return _Line(words, mirror).meaning()


def begins_as_command(text: str) -> bool:
    return text.removeprefix("agentrl ").split(maxsplit=1)[:1] in [[verb] for verb in VERBS]


class _Line:
    def __init__(self, words: list[str], mirror: Mirror) -> None:
        self._verb, rest = words[0], words[1:]
        self._flags = {word for word in rest if word.startswith("--")}
        self._values = dict[str, str]()
        rest = ["--environment" if word == "-e" else word for word in rest]
        for option in ("--note", "--why", "--for", "--environment", "--to", "--reason", "--server", "--sort"):
            if option in rest and rest.index(option) + 1 < len(rest):
                at = rest.index(option)
                self._values[option] = rest[at + 1]
                del rest[at : at + 2]
        self._rest = [word for word in rest if not word.startswith("--")]
        self._mirror = mirror

    def meaning(self) -> PendingCommand | Destination:
        verb, mirror = self._verb, self._mirror
        if verb == "records" and self._rest[:1] and self._rest[0] in pending_commands.RECORD_VERBS:
            return self._stored()
        if verb in _VIEWS:
            return Destination(_VIEWS[verb])
        match verb:
            case "scale":
                return self._scale()
            case "drain" if "--host" in self._flags:
                return pending_commands.drain_host(self._one("host"), cancel="--cancel" in self._flags)
            case "drain":
                unit = self._unit()
                return (
                    pending_commands.cancel_drain(unit) if "--cancel" in self._flags else pending_commands.drain(unit)
                )
            case "restart":
                return self._restart()
            case "stop":
                unit = self._unit()
                return (
                    pending_commands.confirm_dead(unit)
                    if "--force" in self._flags
                    else pending_commands.stop(unit, now=self._now)
                )
            case "pause" | "resume":
                target = self._rest[0] if self._rest else "run"
                if target != "run" and not mirror.group(target):
                    self._unit()
                return pending_commands.pause(target) if verb == "pause" else pending_commands.resume(target)
            case "stacks":
                return pending_commands.stacks([self._known(name).unit for name in self._rest])
            case "logs":
                return self._logs()
            case "tune":
                return self._tune()
            case "alerts":
                return self._alerts()
            case "tasks" | "checkpoints" | "keys" | "review":
                return self._stored()
            case "rollback":
                return self._rollback()
            case "tools":
                return self._tools()
            case "down":
                return pending_commands.down(now=self._now)
        raise UsageError(
            f"The console has no verb {verb!r}.",
            hint=f"{_meant(verb, VERBS)}`?` lists the keys; any other verb works in a shell.",
        )

    def _tools(self) -> PendingCommand | Destination:
        match self._rest:
            case ["restart", name]:
                of = {"sandbox": name} if "/" in name else {"server": name}
                return pending_commands.restart_tool(**of, now=self._now)
            case ["errors"]:
                return Destination("tool-errors")
            case ["show" | "sandboxes" | "sessions", *named]:
                return Destination("tools", self._values.get("--server", named[0] if named else ""))
            case [] | ["list"]:
                return Destination("tools")
        raise UsageError(f"The console does not take `tools {' '.join(self._rest)}`.", hint="It works in a shell.")

    @property
    def _now(self) -> bool:
        return "--now" in self._flags

    def _one(self, what: str) -> str:
        if len(self._rest) != 1:
            raise UsageError(f"`{self._verb}` wants one {what}.", hint=f"Try `{self._verb} {what.upper()}`.")
        return self._rest[0]

    def _unit(self) -> UnitRow:
        return self._known(self._one("unit"))

    def _known(self, name: str) -> UnitRow:
        plain, dot, life = name.partition(".")
        row = self._mirror.unit(plain)
        if row is None:
            raise self._no_unit(name, plain)
        if dot and life != str(row.incarnation):
            raise UnknownNameError(f"{name} is gone: {plain} lives as {plain}.{row.incarnation}.")
        return row

    def _no_unit(self, name: str, plain: str) -> UnknownNameError:
        meant = _meant(plain, [unit.unit for unit in self._mirror.of(UnitRow)])
        return UnknownNameError(f"There is no unit named {name}.", hint=meant.strip())

    def _scale(self) -> PendingCommand:
        if len(self._rest) != 2:
            raise UsageError("`scale` wants a group and a number.", hint="Try `scale GROUP 4`, or +1, or -1.")
        name, count = self._rest
        row = self._mirror.group(name)
        if row is None:
            groups = [group.name for group in self._mirror.groups]
            raise UnknownNameError(f"There is no group named {name}.", hint=_meant(name, groups).strip())
        body = count.lstrip("+-")
        if not (body.isascii() and body.isdecimal() and len(body) < 10 and len(count) - len(body) < 2):
            raise UsageError(f"{count!r} is not a number of units.", hint="Write 4, +1 or -1.")
        to = int(count) if body == count else row.desired + int(count)
        if to < 0:
            raise UsageError(f"{name} has {counted(row.desired, 'units')}; it cannot have {to}.")
        return pending_commands.scale(row, to)

    def _restart(self) -> PendingCommand:
        group = self._mirror.group(self._one("unit or group"))
        return (
            pending_commands.restart_group(group, now=self._now)
            if group
            else pending_commands.restart(self._unit(), now=self._now)
        )

    def _logs(self) -> Destination:
        name = self._one("unit")
        plain, dot, life = name.partition(".")
        if self._mirror.unit(plain) is None:
            raise self._no_unit(name, plain)
        if dot and life.isdecimal():
            return Destination("logs", plain, int(life))
        return Destination("logs", plain, -1 if "--previous" in self._flags else 0)

    def _tune(self) -> PendingCommand | Destination:
        if not self._rest:
            return Destination("tuning")
        row = self._mirror.get(f"knob/{self._rest[0]}")
        if not isinstance(row, KnobRow):
            meant = _meant(self._rest[0], [knob.name for knob in self._mirror.of(KnobRow)])
            raise UnknownNameError(f"There is no knob named {self._rest[0]}.", hint=f"{meant}5 lists them.")
        if "--undo" in self._flags:
            return pending_commands.undo_tune(row)
        if len(self._rest) == 1:
            return Destination("tuning", row.name)
        return pending_commands.tune(row, row.verified().parse(self._rest[1]), self._values.get("--note", ""))

    def _stored(self) -> PendingCommand | Destination:
        """`tasks requeue ID…`, `records exclude ID…`, `review mark VERDICT ID…`, `tasks add FILE -e NAME`,
        `checkpoints pin ID`, `keys revoke NAME`; alone: the list."""
        verb, rest = (self._rest or ["list"])[0], self._rest[1:]
        match self._verb, verb, len(rest):
            case _, "list", _:
                return Destination(self._verb)
            case "tasks", "requeue", count if count:
                return pending_commands.requeue(rest, self._values.get("--note", ""))
            case "records", _, count if count:
                return pending_commands.change_records(verb, rest, self._values.get("--note", ""))
            case "review", "mark", count if count > 1:
                return pending_commands.review(self._verdict(rest[0]), rest[1:], self._values.get("--note", ""))
            case "tasks", "add", 1 if "--environment" in self._values:
                return pending_commands.add_tasks(rest[0], self._values["--environment"])
            case "checkpoints", "pin", 1:
                return pending_commands.pin(rest[0])
            case "checkpoints", "unpin", 1:
                return pending_commands.unpin(rest[0])
            case "keys", "revoke", 1:
                return pending_commands.revoke_key(rest[0])
        raise UsageError(f"`{self._verb} {verb}` is not understood so.", hint="A shell understands all of it.")

    @staticmethod
    def _verdict(word: str) -> str:
        if word not in VERDICTS:
            raise UsageError(f"There is no verdict {word!r}.", hint=f"Verdicts are: {', '.join(VERDICTS)}.")
        return word

    def _rollback(self) -> PendingCommand:
        to, reason = self._values.get("--to", ""), self._values.get("--reason", "")
        if not to or not reason.strip():
            raise UsageError("rollback needs --to CHECKPOINT|VERSION|best and --reason TEXT.", hint="8 C lists them.")
        return pending_commands.rollback(to, reason, keep_knobs="--keep-knobs" in self._flags)

    def _alerts(self) -> PendingCommand | Destination:
        if not self._rest or self._rest[0] == "list":
            return Destination("alerts")
        if self._rest[0] == "test":
            return pending_commands.send_test_alert()
        named = self._rest[1] if len(self._rest) > 1 else ""
        row = self._mirror.get(f"alert/{named}")
        if not isinstance(row, AlertRow):
            raise UnknownNameError(f"There is no alert {named!r}.", hint="4 lists them.")
        if self._rest[0] == "ack":
            return pending_commands.acknowledge(row)
        if self._rest[0] == "silence":
            return pending_commands.silence(
                row, seconds(self._values.get("--for", "1h")), self._values.get("--why", "")
            )
        raise UsageError(f"`alerts {self._rest[0]}` means nothing.", hint="Try `alerts ack`, `alerts silence`.")


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
