"""Builds pending commands: a command of the table with its arguments, fixed at the key press, before preview and
consent.

Invariants:
- A pending command names its target by identity and, for a process, by the incarnation on the screen.
- A pending command has the command line with the same effect.
- The undo of a command follows from the table of commands and the values on the screen.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentrl.formatting.amounts import age, counted
from agentrl.protocol import control_commands, data_changes, tool_commands
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.knob import KnobValue, plain_value
from agentrl.protocol.message_base import Args
from agentrl.protocol.rows import AlertRow, GroupRow, KnobRow, UnitRow


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """One command, ready to be previewed and sent."""

    command: str
    args: Args
    what: str
    """A short description: `restart web-0.7`."""
    cli: tuple[str, ...]
    """The words behind `agentrl`."""
    undo: PendingCommand | None = None
    """The command that reverses it, if it is known beforehand."""

    @property
    def spec(self) -> CommandSpec:
        return COMMANDS[self.command]

    def typed(self, target: Iterable[str] = ()) -> str:
        """The equivalent command line."""
        return line(self.cli, target)


def _life(row: UnitRow) -> str:
    return f"{row.unit}.{row.incarnation}" if row.incarnation else row.unit


def scale(row: GroupRow, to: int) -> PendingCommand:
    """Names the count on the screen: the command and its undo are refused if another person has scaled the group
    since.
    """

    def between(seen: int, wanted: int, back: PendingCommand | None = None) -> PendingCommand:
        args = control_commands.Scale(row.name, to=wanted, seen=seen)
        return PendingCommand("scale", args, f"scale {row.name} to {wanted}", ("scale", row.name, f"{wanted}"), back)

    return between(row.desired, to, between(to, row.desired))


def drain(row: UnitRow) -> PendingCommand:
    return PendingCommand(
        "drain",
        control_commands.DrainUnits(unit=row.unit, incarnation=row.incarnation),
        f"drain {_life(row)}",
        ("drain", _life(row)),
        cancel_drain(row),
    )


def cancel_drain(row: UnitRow) -> PendingCommand:
    return PendingCommand(
        "drain",
        control_commands.DrainUnits(unit=row.unit, incarnation=row.incarnation, cancel=True),
        f"work on, {_life(row)}",
        ("drain", _life(row), "--cancel"),
    )


def drain_host(host: str, *, cancel: bool = False) -> PendingCommand:
    words = ("drain", "--host", host, *(("--cancel",) if cancel else ()))
    what = f"take work on host {host} again" if cancel else f"drain host {host}"
    args = control_commands.DrainUnits(host=host, cancel=cancel)
    return PendingCommand("drain", args, what, words, None if cancel else drain_host(host, cancel=True))


def remove_host(host: str) -> PendingCommand:
    what = f"remove host {host} from the run"
    return PendingCommand("remove_host", control_commands.RemoveHost(host), what, ("hosts", "remove", host))


def forget_host(host: str) -> PendingCommand:
    what = f"say that host {host} is gone for good"
    return PendingCommand("forget_host", control_commands.ForgetHost(host), what, ("hosts", "forget", host))


def restart(row: UnitRow, *, now: bool = False) -> PendingCommand:
    words = ("restart", _life(row), *(("--now",) if now else ()))
    args = control_commands.Restart(row.unit, row.incarnation, now)
    return PendingCommand("restart", args, f"restart {_life(row)}{' at once' if now else ''}", words)


def restart_group(row: GroupRow, *, now: bool = False) -> PendingCommand:
    words = ("restart", row.name, *(("--now",) if now else ()))
    return PendingCommand("restart", control_commands.Restart(row.name, 0, now), f"restart all of {row.name}", words)


def stop(row: UnitRow, *, now: bool = False) -> PendingCommand:
    words = ("stop", _life(row), *(("--now",) if now else ()))
    back = PendingCommand(
        "restart", control_commands.Restart(row.unit), f"start {row.unit} again", ("restart", row.unit)
    )
    what = f"{'kill' if now else 'stop'} {_life(row)}"
    return PendingCommand("stop", control_commands.Stop(row.unit, row.incarnation, now), what, words, back)


def confirm_dead(row: UnitRow) -> PendingCommand:
    args = control_commands.ForceStopped(row.unit, row.incarnation)
    return PendingCommand("force_stopped", args, f"confirm that {_life(row)} is dead", ("stop", _life(row), "--force"))


def pause(target: str) -> PendingCommand:
    return PendingCommand("pause", control_commands.Pause(target), f"pause {target}", ("pause", target), resume(target))


def resume(target: str) -> PendingCommand:
    return PendingCommand("resume", control_commands.Resume(target), f"resume {target}", ("resume", target))


def stacks(units: Iterable[str]) -> PendingCommand:
    named = tuple(units)
    what = f"stacks of {', '.join(named)}" if named else "stacks of all units"
    return PendingCommand("stacks", control_commands.CollectStacks(named), what, ("stacks", *named))


def acknowledge(row: AlertRow) -> PendingCommand:
    return PendingCommand(
        "acknowledge", control_commands.Acknowledge(row.id), f"acknowledge {row.id}", ("alerts", "ack", row.id)
    )


def silence(row: AlertRow, for_s: float, why: str = "") -> PendingCommand:
    def of(seconds: float, what: str) -> PendingCommand:
        words = ("alerts", "silence", row.id, "--for", f"{seconds:g}s", *(("--why", why) if why else ()))
        return PendingCommand("silence", control_commands.Silence(row.id, seconds, why), what, words)

    back = of(0.0, f"end the silence of {row.id}")
    there = of(for_s, f"silence {row.id} for {age(for_s)}")
    return PendingCommand(there.command, there.args, there.what, there.cli, back)


def send_test_alert() -> PendingCommand:
    return PendingCommand("test_alert", control_commands.SendTestAlert(), "send a test alert", ("alerts", "test"))


def tune(row: KnobRow, value: KnobValue, note: str = "") -> PendingCommand:
    """Names the revision on the screen: the command is refused if another person has changed the knob since."""
    shown = plain_value(value)
    words = ("tune", row.name, shown, *(("--note", note) if note else ()))
    back = PendingCommand(
        "undo_tune",
        control_commands.UndoTune(row.name, row.revision + 1),
        f"{row.name} back to {plain_value(row.value)}",
        undo_words(row),
    )
    args = control_commands.Tune(row.name, value, row.revision, note)
    return PendingCommand("tune", args, f"{row.name}: {plain_value(row.value)} → {shown}", words, back)


def undo_words(row: KnobRow) -> tuple[str, ...]:
    return ("tune", row.name, "--undo")


def undo_tune(row: KnobRow) -> PendingCommand:
    args = control_commands.UndoTune(row.name, row.revision)
    return PendingCommand("undo_tune", args, f"take back the last change of {row.name}", undo_words(row))


def down(*, now: bool = False) -> PendingCommand:
    words = ("down", *(("--now",) if now else ()))
    return PendingCommand("down", control_commands.Down(now), "take the run down", words)


def requeue(tasks: Iterable[str], note: str = "") -> PendingCommand:
    ids = tuple(tasks)
    words = ("tasks", "requeue", *ids, *(("--note", note) if note else ()))
    what = f"sample {ids[0] if len(ids) == 1 else counted(len(ids), 'tasks')} again"
    return PendingCommand("requeue_tasks", data_changes.RequeueTasks(ids, note), what, words)


def replay(
    calls: Iterable[str],
    *,
    times: int = 1,
    server: str = "",
    allow: Iterable[str] = (),
    despite_differences: bool = False,
    edit: dict[str, Any] | None = None,
) -> PendingCommand:
    ids, allowed = tuple(calls), tuple(allow)
    words = ("replay", *ids, *(("--times", f"{times}") if times != 1 else ()))
    words += ("--server", server) if server else ()
    words += tuple(word for tool in allowed for word in ("--allow", tool))
    words += ("--despite-differences",) if despite_differences else ()
    words += ("--edit", json.dumps(edit, ensure_ascii=False)) if edit is not None else ()
    args = data_changes.ReplayCalls(
        calls=ids, times=times, server=server, edit=edit, allow=allowed, despite_differences=despite_differences
    )
    return PendingCommand(
        "replay_calls", args, f"replay {ids[0] if len(ids) == 1 else counted(len(ids), 'calls')}", words
    )


def fork(
    target: str = "",
    *,
    replays: Iterable[str] = (),
    times: int = 0,
    note: str = "",
    result: str | None = None,
    message: str | None = None,
) -> PendingCommand:
    chosen = tuple(replays)
    words = ("fork", *((target,) if target else ()), *(word for replay in chosen for word in ("--replay", replay)))
    words += ("--edit-result", result) if result is not None else ()
    words += ("--edit-message", message) if message is not None else ()
    words += ("--times", f"{times}") if times else ()
    words += ("--note", note) if note else ()
    args = data_changes.ForkRecords(target, chosen, result, message, times, note)
    what = target or (chosen[0] if len(chosen) == 1 else counted(len(chosen), "replays"))
    return PendingCommand("fork_records", args, f"fork {what}", words)


def stop_replays(operation: str) -> PendingCommand:
    args = data_changes.StopReplays((operation,))
    back = continue_replays(operation)
    return PendingCommand("stop_replays", args, "hold replays back", ("replays", "stop", operation), back)


def continue_replays(operation: str) -> PendingCommand:
    args = data_changes.ContinueReplays((operation,))
    return PendingCommand("continue_replays", args, "let replays go on", ("replays", "continue", operation))


def keep_replays(replays: Iterable[str]) -> PendingCommand:
    ids = tuple(replays)
    args = data_changes.KeepReplays(ids)
    return PendingCommand("keep_replays", args, f"keep the records of {_which_replays(ids)}", ("replays", "keep", *ids))


def exclude_replayed(replays: Iterable[str]) -> PendingCommand:
    ids = tuple(replays)
    what = f"exclude the records of {_which_replays(ids)} from training"
    words = ("replays", "exclude", *ids)
    return PendingCommand("exclude_replayed", data_changes.ExcludeReplayed(ids), what, words)


def _which_replays(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else counted(len(ids), "replays")


class RecordVerb(NamedTuple):
    """A command that changes records."""

    command: str
    args: Callable[..., data_changes.ChooseRecords]
    sentence: str
    """What it does, with `{}` for the records."""


RECORD_VERBS: Mapping[str, RecordVerb] = {
    "exclude": RecordVerb("exclude_records", data_changes.ExcludeRecords, "exclude {} from training"),
    "requeue": RecordVerb("requeue_records", data_changes.RequeueRecords, "attempt the seat of {} again"),
    "cancel": RecordVerb("cancel_records", data_changes.CancelRecords, "cancel {}"),
    "rescore": RecordVerb("rescore_records", data_changes.RescoreRecords, "score {} again"),
}
"""By their words on a command line."""


def which_records(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else counted(len(ids), "records")


def change_records(verb: str, records: Iterable[str], note: str = "") -> PendingCommand:
    ids, of = tuple(records), RECORD_VERBS[verb]
    words = ("records", verb, *ids, *(("--note", note) if note else ()))
    return PendingCommand(of.command, of.args(ids, note=note), of.sentence.format(which_records(ids)), words)


def exclude_since_canary(engine: UnitRow, note: str = "") -> PendingCommand:
    name = _life(engine)
    words = ("records", "exclude", "--made-by", name, "--since", "canary", *(("--note", note) if note else ()))
    args = data_changes.ExcludeRecords(made_by=name, since_canary=True, note=note)
    return PendingCommand(
        "exclude_records", args, f"exclude what {name} generated since its last canary from training", words
    )


def review(verdict: str, records: Iterable[str], note: str = "") -> PendingCommand:
    ids = tuple(records)
    words = ("review", "mark", verdict, *ids, *(("--note", note) if note else ()))
    args = data_changes.ReviewRecords(ids, note=note, verdict=verdict)  # type: ignore[arg-type]
    return PendingCommand("review_records", args, f"note the verdict {verdict} on {which_records(ids)}", words)


def add_tasks(file: str, environment: str) -> PendingCommand:
    words = ("tasks", "add", file, "--environment", environment)
    return PendingCommand(
        "add_tasks", data_changes.AddTasks(environment, file), f"add tasks of {file} to {environment}", words
    )


def pin(checkpoint: str) -> PendingCommand:
    args = data_changes.PinCheckpoint(checkpoint)
    return PendingCommand(
        "pin_checkpoint", args, f"pin {checkpoint}", ("checkpoints", "pin", checkpoint), unpin(checkpoint)
    )


def unpin(checkpoint: str) -> PendingCommand:
    args = data_changes.UnpinCheckpoint(checkpoint)
    return PendingCommand("unpin_checkpoint", args, f"unpin {checkpoint}", ("checkpoints", "unpin", checkpoint))


def rollback(to: str, reason: str, *, keep_knobs: bool = False) -> PendingCommand:
    args = data_changes.RollBack(to=to, note=reason, keep_knobs=keep_knobs)
    words = ("rollback", "--to", to, "--reason", reason, *(("--keep-knobs",) if keep_knobs else ()))
    return PendingCommand("rollback", args, f"go back to {to}", words)


def restart_tool(*, server: str = "", sandbox: str = "", now: bool = False) -> PendingCommand:
    words = ("tools", "restart", server or sandbox, *(("--now",) if now else ()))
    args = tool_commands.RestartTool(server=server, sandbox=sandbox, now=now)
    return PendingCommand("restart_tool", args, f"restart {server or sandbox}{' at once' if now else ''}", words)


def release_session(session: str, toolbox: str) -> PendingCommand:
    args = tool_commands.ReleaseSession(session, toolbox)
    return PendingCommand("release_session", args, f"release {session}", ("tools", "release", session))


def revoke_key(name: str) -> PendingCommand:
    return PendingCommand(
        "revoke_key", control_commands.RevokeKey(name), f"revoke the key {name}", ("keys", "revoke", name)
    )


def rotate_keys() -> PendingCommand:
    return PendingCommand(
        "rotate_keys", control_commands.RotateKeys(), "replace the secrets of the run", ("keys", "rotate")
    )


def line(words: Iterable[str], target: Iterable[str] = ()) -> str:
    """A command line for the same run."""
    return shlex.join(["agentrl", *words, *target])
