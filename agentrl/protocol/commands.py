"""The table of commands. The command line, the Python client, the console and the coordinator use it.

Invariants: every command has a permission, a tier function and, if one exists, the command that reverses it; what it
takes and answers is in `control_commands`, `data_commands`, `data_changes` and `tool_commands`. There the fields of the
arguments also say how they are written on a command line, and the arguments of an act have its title and its undo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from agentrl.protocol import data_changes, data_commands, evaluation_commands, other_model_commands, tool_commands
from agentrl.protocol.control_commands import (
    Accepted,
    Acknowledge,
    AddKey,
    Alerts,
    Apply,
    CollectStacks,
    Down,
    DrainUnits,
    Events,
    ForceStopped,
    ForgetHost,
    Happenings,
    KeyRow,
    KnobHistory,
    Knobs,
    ListKeys,
    Pause,
    ReadLogs,
    RemoveHost,
    Restart,
    Resume,
    RevokeKey,
    RotateKeys,
    Scale,
    SendTestAlert,
    ShowOperation,
    Silence,
    Snapshot,
    Status,
    StatusReport,
    Stop,
    Tune,
    UndoTune,
    Why,
    WhyReport,
)
from agentrl.protocol.effects import Effect, Tier, disruptive, harmless, tier_of
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import LogChunk, Permission
from agentrl.protocol.rows import (
    AlertRow,
    AuditRow,
    KnobRow,
    OperationRow,
)

# ---- the table ----

STEWARD = "steward"
TOOLBOX = "toolbox"


class CommandSpec(msgspec.Struct, frozen=True):
    name: str
    """Name on the wire and of the client's method."""
    args: type[Args]
    permission: Permission
    cli: str
    """The CLI verb."""
    mutates: bool
    help: str
    tier: Callable[[Effect], Tier] = tier_of
    reverse: str = ""
    """The command that takes it back, if there is one."""
    result: Any = Accepted
    """The type of the answer; None for a snapshot, which is a stream of rows."""
    served_by: str = ""
    """The group whose units answer or execute it; empty for the coordinator."""
    by_all: bool = False
    """Every ready unit of that group serves it, unless its arguments name an incarnation. The answer of a query is
    `JoinedRows`: the lists that they return, and the units that did not answer.
    """


def _query(
    name: str, args: type[Args], result: Any, cli: str, help: str, permission: Permission = Permission.VIEWER
) -> CommandSpec:
    return CommandSpec(name, args, permission, cli, False, help, tier=harmless, result=result)


def _act(
    name: str,
    args: type[Args],
    cli: str,
    help: str,
    reverse: str = "",
    permission: Permission = Permission.OPERATOR,
    tier: Callable[[Effect], Tier] = tier_of,
) -> CommandSpec:
    return CommandSpec(name, args, permission, cli, True, help, tier=tier, reverse=reverse)


def _list(name: str, cli: str, help: str) -> CommandSpec:
    return _served(name, data_commands.ListRows, data_commands.Page, cli, help)


def _served(name: str, args: type[Args], result: Any, cli: str, help: str) -> CommandSpec:
    return structs.replace(_query(name, args, result, cli, help), served_by=STEWARD)


def _of_toolboxes(name: str, args: type[Args], result: Any, cli: str, help: str) -> CommandSpec:
    return structs.replace(_query(name, args, result, cli, help), served_by=TOOLBOX, by_all=True)


def _by_toolboxes(
    name: str,
    args: type[Args],
    cli: str,
    help: str,
    permission: Permission = Permission.OPERATOR,
    tier: Callable[[Effect], Tier] = tier_of,
) -> CommandSpec:
    spec = _act(name, args, cli, help, permission=permission, tier=tier)
    return structs.replace(spec, served_by=TOOLBOX, by_all=True)


def _changed(name: str, args: type[Args], cli: str, help: str, reverse: str = "") -> CommandSpec:
    return structs.replace(_act(name, args, cli, help, reverse), served_by=STEWARD)


COMMANDS: dict[str, CommandSpec] = {
    spec.name: spec
    for spec in (
        _query("status", Status, StatusReport, "status", "Everything about the run at this moment."),
        _query("snapshot", Snapshot, None, "status --follow", "All rows, closed by the feed's sequence number."),
        _query("why", Why, WhyReport, "why", "Who waits for whom, and who is the culprit."),
        _query("show_operation", ShowOperation, OperationRow, "events", "One operation."),
        _query("events", Events, Happenings, "events", "Operations, incidents, audit, knob changes and alerts."),
        _query("read_logs", ReadLogs, LogChunk, "logs", "A range of a unit's log."),
        _query("knobs", Knobs, list[KnobRow], "tune", "Every knob with value, range and boundary."),
        _query(
            "knob_history",
            KnobHistory,
            list[AuditRow],
            "tune --history",
            "Who changed a knob, when, from what to what.",
        ),
        _query("alerts", Alerts, list[AlertRow], "alerts list", "Alerts with evidence and suggested command."),
        _query("list_keys", ListKeys, list[KeyRow], "keys list", "Keys and what they may do.", Permission.ADMIN),
        _list("list_tasks", "tasks list", "Rows of datasets, with all attempts at them."),
        _list("list_records", "records list", "Attempts, with what those under way are doing."),
        _served(
            "list_reviews",
            data_commands.ListReviews,
            data_commands.Page,
            "review list",
            "Records that a person should look at, and why.",
        ),
        _list("list_steps", "steps list", "Trained batches with their metrics."),
        _list("list_checkpoints", "checkpoints list", "What was saved."),
        _served(
            "show_task",
            data_commands.ShowOne,
            data_commands.Story,
            "tasks show",
            "One task with its attempts and steps.",
        ),
        _served(
            "show_record",
            data_commands.ShowRecord,
            data_commands.RecordStory,
            "records show",
            "One attempt, turn by turn.",
        ),
        _served(
            "read_image",
            data_commands.ReadImage,
            data_commands.ImagePart,
            "records html",
            "The bytes of a stored image.",
        ),
        _served(
            "record_tokens",
            data_commands.RecordTokens,
            data_commands.TokenPart,
            "records show --tokens",
            "The tokens of one attempt.",
        ),
        _served(
            "show_step",
            data_commands.ShowOne,
            data_commands.Story,
            "steps show",
            "One step with the records that it trained.",
        ),
        _served(
            "show_checkpoint",
            data_commands.ShowOne,
            data_commands.Story,
            "checkpoints show",
            "One checkpoint with its files.",
        ),
        _served(
            "export_records",
            data_commands.ExportRecords,
            data_commands.ExportPart,
            "records export",
            "Whole trajectories.",
        ),
        _served(
            "list_calls",
            data_commands.ListCalls,
            data_commands.Page,
            "calls list",
            "Tool calls, with their ends and errors.",
        ),
        _served(
            "show_call",
            data_commands.ShowCall,
            data_commands.CallStory,
            "calls show",
            "One tool call with its turn, record and session.",
        ),
        _served(
            "tool_errors",
            data_commands.ToolErrors,
            list[data_commands.ToolErrorGroup],
            "tools errors",
            "What went wrong, by kind.",
        ),
        *(_of_toolboxes(*row) for row in tool_commands.QUERIES),
        _served(
            "accounting", data_commands.Accounting, data_commands.AccountReport, "accounting", "Sums that must agree."
        ),
        _served(
            "staleness",
            data_commands.Staleness,
            data_commands.StalenessReport,
            "staleness",
            "Ages, and what another bound would do.",
        ),
        _served(
            "preview_past",
            data_commands.PastPreview,
            data_commands.PastChange,
            "tune --dry-run",
            "What a value of a knob would have changed over the last batches.",
        ),
        *(_served(*row) for row in (*other_model_commands.QUERIES, *evaluation_commands.QUERIES)),
        _list("list_replays", "replays list", "Tool calls that were executed again, with their verdicts."),
        _served("show_replay", data_commands.ShowOne, data_commands.Story, "replays show", "One replay."),
        _list("list_versions", "versions list", "Published weights, and which engine serves them."),
        _act("apply", Apply, "up", "Make the run equal to a configuration.", "down", Permission.ADMIN),
        _act("down", Down, "down", "Stop everything and prove that nothing is left.", "apply", Permission.ADMIN),
        _act("scale", Scale, "scale", "Change how many units a group has.", "scale"),
        _act("drain", DrainUnits, "drain", "Let units finish and stop.", "drain"),
        _act("restart", Restart, "restart", "Replace units by new incarnations."),
        _act("stop", Stop, "stop", "Stop one unit.", "restart"),
        _act("pause", Pause, "pause", "Units take no new work.", "resume"),
        _act("resume", Resume, "resume", "Units take work again.", "pause"),
        _act("tune", Tune, "tune", "Change a knob.", "undo_tune"),
        _act("undo_tune", UndoTune, "tune --undo", "Take back the last change of a knob.", "tune"),
        _act("acknowledge", Acknowledge, "alerts ack", "Note that a person works on it."),
        _act("silence", Silence, "alerts silence", "No notifications for a while.", "silence"),
        _act("test_alert", SendTestAlert, "alerts test", "Send a test through every sink.", tier=harmless),
        _changed("requeue_tasks", data_changes.RequeueTasks, "tasks requeue", "Sample tasks again."),
        _changed("replay_calls", data_changes.ReplayCalls, "replay", "Execute tool calls again and compare."),
        _changed(
            "stop_replays",
            data_changes.StopReplays,
            "replays stop",
            "Hold queued replays back.",
            "continue_replays",
        ),
        _changed(
            "continue_replays",
            data_changes.ContinueReplays,
            "replays continue",
            "Let held replays go on.",
            "stop_replays",
        ),
        _changed("keep_replays", data_changes.KeepReplays, "replays keep", "Leave records of replays as they are."),
        _changed("exclude_replayed", data_changes.ExcludeReplayed, "replays exclude", "Keep records of replays out."),
        _changed("fork_records", data_changes.ForkRecords, "fork", "Go on from a place in a record."),
        _by_toolboxes("restart_tool", tool_commands.RestartTool, "tools restart", "Replace processes of a server."),
        _by_toolboxes("release_session", tool_commands.ReleaseSession, "tools release", "Close a session."),
        _by_toolboxes(
            "exec_in_sandbox",
            tool_commands.ExecInSandbox,
            "tools exec",
            "Run a program in a sandbox.",
            Permission.ADMIN,
            disruptive,
        ),
        _changed("exclude_records", data_changes.ExcludeRecords, "records exclude", "Keep records out of training."),
        _changed("requeue_records", data_changes.RequeueRecords, "records requeue", "Attempt failed seats again."),
        _changed("cancel_records", data_changes.CancelRecords, "records cancel", "End records that have not ended."),
        _changed("rescore_records", data_changes.RescoreRecords, "records rescore", "Score records again."),
        _changed("review_records", data_changes.ReviewRecords, "review mark", "Note a verdict on records."),
        _changed("add_tasks", data_changes.AddTasks, "tasks add", "Queue the rows of a file."),
        _changed(
            "pin_checkpoint", data_changes.PinCheckpoint, "checkpoints pin", "Keep a checkpoint.", "unpin_checkpoint"
        ),
        _changed(
            "unpin_checkpoint",
            data_changes.UnpinCheckpoint,
            "checkpoints unpin",
            "Leave it to retention.",
            "pin_checkpoint",
        ),
        _changed(
            "rollback",
            data_changes.RollBack,
            "rollback",
            "Go on from an earlier checkpoint.",
            "rollback",
        ),
        _act("stacks", CollectStacks, "stacks", "Stacks of all units into one file.", tier=harmless),
        _act("remove_host", RemoveHost, "hosts remove", "Drain a host, then end its agent and revoke its key."),
        _act("forget_host", ForgetHost, "hosts forget", "Declare that a silent host is gone for good."),
        _act("force_stopped", ForceStopped, "stop --force", "Confirm that a lost unit is dead."),
        _act("add_key", AddKey, "keys new", "Admit a key.", "revoke_key", Permission.ADMIN),
        _act("rotate_keys", RotateKeys, "keys rotate", "Replace the secrets of the run.", "", Permission.ADMIN),
        _act("revoke_key", RevokeKey, "keys revoke", "Refuse a key from now on.", "", Permission.ADMIN),
    )
}


def act_of(args: Args) -> CommandSpec:
    """The command that changes something with these arguments. Each has a type of arguments of its own."""
    return COMMANDS[_ACTS[type(args)]]


_ACTS: dict[type[Args], str] = {spec.args: spec.name for spec in COMMANDS.values() if spec.mutates}
