"""Defines the registry of actions: every action of the console with its keys, labels, command and handler.

Key map, footer, help, palette and the reference in the docs come from here.

Invariants:
- Within one view no key has two meanings.
- An action that sends a command names it, so permission, danger and undo come from the table of commands.
- Every handler exists and belongs to the views that offer it: `check` runs at start-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl.protocol.data_commands import MALFORMED
from tui.cli_runner import CliRunner
from tui.command_palette import CommandPalette
from tui.command_runner import CommandRunner
from tui.export import Exporter
from tui.frame import Frame
from tui.model import pending_commands
from tui.model.actions import EVERYWHERE, UNDO, Action, When
from tui.navigation import Navigation
from tui.playback_actions import JUMP_S, PlaybackActions
from tui.views.alerts import Alerts, AlertVerbs
from tui.views.calls import CallPage, Calls, ToolErrors, filter_from
from tui.views.detail_pages import AlertPage, DetailPage, UnitPage
from tui.views.events import Events
from tui.views.fleet import Fleet, UnitVerbs
from tui.views.forks import fork_call, fork_record, fork_replays
from tui.views.hosts import HostPage, Hosts, HostVerbs
from tui.views.logs import Logs
from tui.views.overview import Overview
from tui.views.query_views import QueryPage, RecordLinksPage, StepPage, WaitsPage
from tui.views.records import AttemptsVerb, FoldingPage, GroupPage, RecordPage, Records, TokenTree
from tui.views.replays import ReplayPage, Replays, replay
from tui.views.reviews import Reviews
from tui.views.runs import Runs
from tui.views.stored_tables import AccountPage, Checkpoints, Keys, TaskPage, Tasks
from tui.views.tools import ToolList, Tools, ToolServers, ToolSessions
from tui.views.training import Training
from tui.views.tuning import KnobPage, KnobVerbs, Tuning
from tui.views.view import TableView, View

SCREENS: tuple[type[View], ...] = (Overview, Fleet, Events, Alerts, Tuning, Logs, Records, Training, Runs)
"""The views that have a digit."""
_PAGES: tuple[type[View], ...] = (
    *(DetailPage, UnitPage, AlertPage, KnobPage, QueryPage, StepPage, TaskPage, RecordPage, GroupPage, AccountPage),
    *(Tasks, Checkpoints, Keys, ToolErrors, Calls, CallPage, TokenTree, Replays, ReplayPage, Reviews),
    *(ToolServers, Tools, ToolSessions, Hosts, HostPage),
)
KINDS: dict[str, type[View]] = {kind.name_in_registry: kind for kind in (*SCREENS, *_PAGES)}
TABLES = (
    *("fleet", "events", "alerts", "tuning", "records", "training", "runs"),
    *("tasks", "checkpoints", "keys", "tool-errors", "calls", "token-tree", "replays", "reviews"),
    *("tool-servers", "tools", "tool-sessions", "hosts"),
)
_RECORD_LINKS = "step task record call"
"""Pages that name records."""
_QUERIED = f"answer {_RECORD_LINKS} group replay"
"""Pages that are queried once, when they are opened."""
_TABLES = " ".join(TABLES)
Run = Callable[..., None]


def _action(
    id: str, keys: str, title: str, help: str, run: Run, command: str = "", footer: int = 0, args: tuple[Any, ...] = ()
) -> Action:
    return Action(id, tuple(keys.split()), title, help, run, args, command=command, footer=footer)


def _in(where: str, *actions: Action) -> Iterable[Action]:
    """Actions of the views of these names."""
    return (replace(action, where=tuple(where.split())) for action in actions)


def _by(target: type[Any], *actions: Action) -> Iterable[Action]:
    """Actions of a service."""
    return (replace(action, target=target) for action in actions)


def _live(*actions: Action) -> Iterable[Action]:
    """Actions that a recording does not offer."""
    return (replace(action, when=When.LIVE) for action in actions)


def _recorded(*actions: Action) -> Iterable[Action]:
    """Actions that only a recording offers."""
    return (replace(action, when=When.PLAYBACK) for action in actions)


def _for_rows(*actions: Action) -> Iterable[Action]:
    """Actions whose keys wait for the rows of a view that was just opened."""
    return (replace(action, needs_rows=True) for action in actions)


def _page(make: Callable[[], View]) -> Run:
    def run(navigation: Navigation) -> None:
        navigation.open_page(make())

    return run


def _move(how: str) -> Run:
    def run(view: View) -> None:
        view.do_move(how)

    return run


def _open_calls(view: View) -> None:
    group = view.selected() if isinstance(view, ToolErrors) else None
    if isinstance(view, ToolErrors) and group is not None and group.status != MALFORMED:
        view.open_row(group)
        return
    wanted = view.calls_filter() if isinstance(view, ToolList) else filter_from(view)
    view.actions.navigation.open_page(Calls(wanted))


def _fork(view: Calls | CallPage | Replays | ReplayPage | RecordPage) -> None:
    """Fork at the place that is shown or selected."""
    if isinstance(view, RecordPage):
        fork_record(view, view.record_id(), view.place_to_fork())
    elif isinstance(view, CallPage):
        fork_call(view, view.call)
    elif isinstance(view, ReplayPage):
        if view.call:
            fork_replays(view, [view.replay], view.call)
    elif (row := view.selected()) is not None and isinstance(view, Replays):
        fork_replays(view, view.marked_ids(), str(row["call"]))
    elif row is not None:
        fork_call(view, str(row["id"]))


def _replay(view: Calls | CallPage) -> None:
    """Replay the call of a page; of a list the marked calls, or the selected one."""
    if isinstance(view, CallPage):
        replay(view, [view.call], arguments=view.arguments)
        return
    marked = sorted(view.table.model.marked)
    if not marked and (row := view.selected()) is not None:
        marked = [str(row["id"])]
    replay(view, marked)


_ = _action
ACTIONS: tuple[Action, ...] = (
    *_by(
        Navigation,
        _("go.overview", "1", "overview", "What needs you, what moves, what changed.",
          Navigation.open_tab, args=("overview",)),
        _("go.fleet", "2", "fleet", "Every unit, with verbs.", Navigation.open_tab, args=("fleet",)),
        _("go.events", "3", "events", "What happened, the newest first.", Navigation.open_tab, args=("events",)),
        _("go.alerts", "4", "alerts", "What is wrong, since when, and the command that cures it.",
          Navigation.open_tab, args=("alerts",)),
        _("go.tuning", "5", "tuning", "Every knob: value, range, who changed it; preview, history, undo.",
          Navigation.open_tab, args=("tuning",)),
        _("go.logs", "6", "logs", "What units write, followed and searched.", Navigation.open_tab, args=("logs",)),
        _("go.records", "7", "records", "Trajectories, the newest first, and what those under way wait for.",
          Navigation.open_tab, args=("records",)),
        _("go.training", "8", "training", "Steps of the trainer, with their metrics and records.",
          Navigation.open_tab, args=("training",)),
        _("go.runs", "9", "runs", "Your runs: enter shows another one, or plays the recording of a dead one.",
          Navigation.open_tab, args=("runs",)),
    ),
    *_by(
        CommandPalette,
        _("help", "question_mark", "help", "All keys of this screen.", CommandPalette.do_help, "", 60),
        _("palette", "colon ctrl+p", "command", "Any action by its name, or a command line.",
          CommandPalette.do_palette, "", 45),
    ),
    *_by(
        Navigation,
        _("back", "escape", "back", "One step back: closes a page or ends a filter.", Navigation.do_back),
        _("quit", "q", "quit", "Leaves the console. The run goes on.", Navigation.do_quit, "", 60),
        *_in(f"{_TABLES} logs", _("filter", "slash", "filter", "Only rows with these words.",
          Navigation.do_filter, "", 51)),
    ),
    *_live(
        *_by(CommandRunner, _(UNDO, "u", "undo", "Takes the last command back, within 10 s.", CommandRunner.do_undo)),
        *_by(Navigation, _("why", "w", "why", "Who waits for whom, and the cause.", _page(WaitsPage), "", 20)),
    ),
    *_by(Frame, _("freeze", "z", "freeze", "Stops and resumes repainting; the data goes on.", Frame.do_freeze)),
    *_by(Navigation, _("copy-line", "Y", "copy", "Copies the command line that does or shows the same.",
      Navigation.do_copy_line)),
    *_by(Frame, _("theme", "", "theme", "Dark or light.", Frame.do_theme)),
    *_by(Exporter, _("screenshot", "f12", "picture", "Writes an SVG picture of the screen.", Exporter.do_screenshot)),
    *_in(_TABLES, _("export", "E", "export", "Writes the rows of this table to a file: JSON, JSONL or CSV.",
      TableView.do_export)),
    # hosts
    *_in("overview fleet", *_by(Navigation, _("list.hosts", "H", "hosts", "Hosts: what runs where, and what waits.",
      _page(Hosts), "", 34))),
    *_in(
        "hosts host",
        _("host.drain", "d", "drain", "Its units finish and start elsewhere.", HostVerbs.do_host_drain, "drain", 58,
          (False,)),
        _("host.again", "a", "take units", "It takes units again.", HostVerbs.do_host_drain, "drain", 57, (True,)),
        _("host.remove", "x", "remove", "Drains it, then it leaves the run.", HostVerbs.do_host_remove,
          "remove_host", 56),
        _("host.forget", "F", "gone for good", "Says that a silent host will not come back.",
          HostVerbs.do_host_forget, "forget_host", 55),
    ),
    # fleet
    *_in(
        "fleet",
        _("unit.more", "plus equals_sign", "more", "One unit more in this group.", Fleet.do_scale, "scale", 58, (1,)),
        _("unit.fewer", "minus", "fewer", "One unit fewer in this group.", Fleet.do_scale, "scale", 57, (-1,)),
    ),
    *_in(
        "fleet unit",
        _("unit.restart", "r", "restart", "A new incarnation of this unit.", UnitVerbs.do_unit_command, "restart", 56,
          (pending_commands.restart,)),
    ),
    *_in("fleet", _("group.restart", "R", "restart group", "New incarnations of the whole group.",
      Fleet.do_group_restart, "restart")),
    *_in(
        "fleet unit",
        _("unit.drain", "d", "drain", "Finishes its work, then stops.", UnitVerbs.do_unit_command, "drain", 55,
          (pending_commands.drain,)),
        _("unit.undrain", "D", "work on", "Cancels a drain.", UnitVerbs.do_unit_command, "drain",
          args=(pending_commands.cancel_drain,)),
        _("unit.stop", "s", "stop", "Stops it until a restart.", UnitVerbs.do_unit_command, "stop", 54,
          (pending_commands.stop,)),
        _("unit.kill", "K", "kill", "Stops it without letting it finish.", UnitVerbs.do_unit_command, "stop",
          args=(partial(pending_commands.stop, now=True),)),
        _("unit.vouch", "V", "vouch", "Says that a lost unit is dead.", UnitVerbs.do_unit_vouch, "force_stopped"),
        _("unit.pause", "p", "pause/resume", "Stops or resumes taking new work.", UnitVerbs.do_unit_pause, "pause", 30),
        _("unit.logs", "l", "logs", "What it writes.", UnitVerbs.do_unit_logs, "", 53),
        _("unit.previous", "L", "last life", "The log of its incarnation before this one.", UnitVerbs.do_unit_previous),
        _("unit.incident", "i", "incident", "Its newest unplanned end.", UnitVerbs.do_unit_incident, "", 52),
        _("unit.stacks", "S", "stacks", "Stacks of this or the marked units.", UnitVerbs.do_unit_stacks, "stacks", 25),
    ),
    *_in(
        "overview",
        _("cure.1", "a", "1st cure", "Opens the first alert.", Overview.do_open_alert, args=(0,)),
        _("cure.2", "b", "2nd cure", "Opens the second alert.", Overview.do_open_alert, args=(1,)),
        _("cure.3", "c", "3rd cure", "Opens the third alert.", Overview.do_open_alert, args=(2,)),
    ),
    *_in(
        "alerts alert",
        _("alert.cure", "c", "cure", "Does what the alert suggests.", AlertVerbs.do_alert_cure, "", 58),
        _("alert.ack", "a", "acknowledge", "Says that a person works on it.",
          AlertVerbs.do_alert_ack, "acknowledge", 57),
        _("alert.silence", "s", "silence", "Sends nothing for a while.", AlertVerbs.do_alert_silence, "silence", 56),
    ),
    *_in("alerts", _("alert.all", "t", "resolved too", "Shows or hides resolved alerts.", Alerts.do_alert_all)),
    # tuning
    *_in("tuning knob", _("knob.undo", "U", "undo knob", "Takes back its last change.",
      KnobVerbs.do_knob_undo, "undo_tune", 56)),
    *_in(
        "tuning",
        _("knob.bound", "b", "bound", "The staleness bound, with ready records by age.", Tuning.do_knob_bound, "", 49),
        _("knob.less", "left", "less", "What a tighter bound would do; nothing is changed.", Tuning.do_knob_try,
          args=(-1,)),
        _("knob.more", "right", "more", "What a looser bound would do; nothing is changed.", Tuning.do_knob_try,
          args=(1,)),
        *_live(_("knob.history", "h", "history", "Every change of this knob.", Tuning.do_knob_history, "", 55)),
    ),
    *_in("events", _("events.kind", "t", "kind", "All events, then one kind after the other.",
      Events.do_events_kind, "", 58)),
    *_in(
        "logs",
        _("logs.follow", "f", "follow", "Starts or stops following the end.", Logs.do_logs_follow, "", 58),
        _("logs.unit", "enter", "unit", "Another unit.", Logs.do_logs_unit, "", 57),
        _("logs.wrap", "W", "wrap", "Wraps long lines, or cuts them.", Logs.do_logs_wrap, "", 56),
        _("logs.mark", "m", "mark", "Marks a line, or removes its mark.", Logs.do_logs_mark, "", 38),
        _("logs.next-mark", "n", "next mark", "The marked line after this one.", Logs.do_logs_to_mark, "", 37, (1,)),
        _("logs.previous-mark", "N", "mark before", "The marked line before this one.", Logs.do_logs_to_mark,
          args=(-1,)),
        _("logs.older", "left_square_bracket", "older life", "The incarnation before.",
          Logs.do_logs_to_life, "", 40, (-1,)),
        _("logs.newer", "right_square_bracket", "newer life", "The incarnation after.",
          Logs.do_logs_to_life, "", 39, (1,)),
    ),
    *_for_rows(
        *_in(_TABLES, _("drill", "enter", "open", "Everything about the selected row.", TableView.do_open, "", 50)),
    ),
    *_in(
        _TABLES,
        _("sort-left", "less_than_sign", "sort by left", "Sorts by the column before.", TableView.do_sort, args=(-1,)),
        _("sort-right", "greater_than_sign", "sort by right", "Sorts by the next column.",
          TableView.do_sort, args=(1,)),
        _("sort-turn", "o", "turn order", "Reverses the order.", TableView.do_sort_turn),
    ),
    *_for_rows(
        *_in(
            "fleet tasks records calls replays reviews",
            _("mark", "space", "mark", "For a command on several rows.", TableView.do_mark, "", 10),
            _("mark.all", "asterisk", "mark all", "Marks all rows that are shown, or removes all marks.",
              TableView.do_mark_all),
        ),
        *_in(
            "table",
            _("move.up", "up k", "up", "One row up.", _move("up")),
            _("move.down", "down j", "down", "One row down.", _move("down")),
            _("move.page-up", "pageup ctrl+b", "page up", "A screen up.", _move("page-up")),
            _("move.page-down", "pagedown ctrl+f", "page down", "A screen down.", _move("page-down")),
            _("move.first", "home g", "first", "The first row, which the cursor follows.", _move("first")),
            _("move.last", "end G", "last", "The last row.", _move("last")),
        ),
    ),
    *_in(
        "logs",
        _("move.left", "left", "left", "The beginning of long lines.", _move("left")),
        _("move.right", "right", "right", "More of long lines.", _move("right")),
    ),
    # what the steward answers, so no recording has it
    *_live(
        *_in(
            "records",
            *_by(Navigation, _("records.errors", "e", "tool errors", "Failed tool calls by kind.",
              _page(ToolErrors), "", 58)),
            _("records.under-way", "s", "under way", "Records that have not ended, the oldest first.",
              Records.do_records_under_way, "", 57),
        ),
        *_in("fleet unit", _("unit.exclude", "x", "exclude",
          "Keeps out of training what the engine generated since its last passed canary.",
          UnitVerbs.do_unit_exclude, "exclude_records")),
        *_in("overview fleet", *_by(Navigation, _("list.tools", "T", "tools",
          "Tool servers, their tools, sandboxes and sessions.", _page(ToolServers), "", 35))),
        *_for_rows(*_in("tool-servers tools tool-sessions",
          _("tools.restart", "r", "restart", "Replaces the processes of the server, or the sandbox, as sessions end.",
            ToolList.do_tool_restart, "restart_tool", 56, (False,)),
          _("tools.kill", "K", "kill", "Replaces them at once, with the sessions that they have.",
            ToolList.do_tool_restart, "restart_tool", 0, (True,)))),
        *_for_rows(*_in("tool-servers tools tool-sessions", _("tools.logs", "l", "logs",
          "What the server or the sandbox wrote to its log.", ToolList.do_tool_logs, "", 54))),
        *_for_rows(*_in("tool-sessions", _("tools.release", "x", "release",
          "Closes the session, and cancels its calls.", ToolSessions.do_session_release, "release_session", 55))),
        *_for_rows(*_in("tool-servers", _("tools.sandboxes", "s", "sandboxes",
          "The sandboxes and sessions of the selected server.", ToolServers.do_open_sandboxes, "", 57))),
        *_in("overview records tool-errors record tool-servers tools tool-sessions", _("calls", "t", "tool calls",
          "Tool calls one by one: all, those of the kind of error, or those of the record.", _open_calls, "", 56)),
        *_in("calls", _("calls.failed", "f", "failed only", "Only calls that failed, or all.",
          Calls.do_calls_failed, "", 58)),
        *_in(
            "records",
            _("records.exclude", "x", "exclude", "Keeps the selected or the marked records out of training.",
              Records.do_records_change, "exclude_records", 54, ("exclude",)),
            _("records.requeue", "r", "requeue", "Attempts the seats of the selected or the marked records again.",
              Records.do_records_change, "requeue_records", 53, ("requeue",)),
            _("records.cancel", "K", "cancel", "Ends the selected or the marked records, and stops their episodes.",
              Records.do_records_change, "cancel_records", 52, ("cancel",)),
            _("records.rescore", "S", "score again", "Scores the selected or the marked records again.",
              Records.do_records_change, "rescore_records", 51, ("rescore",)),
            *_by(Navigation, _("list.reviews", "v", "review", "Records that a person should look at, and why.",
              _page(Reviews), "", 49)),
        ),
        *_in(
            "reviews",
            _("review.good", "plus equals_sign", "good", "Notes on the selected or the marked records: good.",
              Reviews.do_review, "review_records", 58, ("good",)),
            _("review.bad", "minus", "bad", "Notes: bad. `x` in records excludes them.",
              Reviews.do_review, "review_records", 57, ("bad",)),
            _("review.golden", "D", "golden", "Notes: golden, good enough for a dataset.",
              Reviews.do_review, "review_records", 56, ("golden",)),
        ),
        *_in("records", _("records.export", "X", "export whole", "Writes whole trajectories of this filter to a file.",
          Records.do_records_export)),
        *_for_rows(*_in(_RECORD_LINKS, _("page.record", "enter", "a record", "One of its records, or another attempt.",
          RecordLinksPage.do_page_record, "", 50))),
        *_in("record group call", _("record.unfold", "f", "unfold", "Folds and unfolds long texts.",
          FoldingPage.do_record_unfold, "", 58)),
        *_in(_QUERIED, _("page.again", "r", "again", "Asks the steward again.", QueryPage.do_page_again, "", 53)),
        *_in(
            "record",
            _("record.colour", "c", "tokens by", "By weights, log-prob or training.",
              RecordPage.do_record_colour, "", 57),
            _("record.tree", "b", "branches", "The tree of its tokens, with jumps.", RecordPage.do_record_tree, "", 56),
        ),
        *_for_rows(
            *_in("records record", _("record.group", "a", "attempts", "The attempts of its group side by side.",
              AttemptsVerb.do_record_group, "", 55)),
            *_in(
                "record",
                _("record.next-turn", "right_square_bracket", "next turn", "The turn after this one.",
                  RecordPage.do_to_neighbour, args=(1,)),
                _("record.previous-turn", "left_square_bracket", "turn before", "The turn before this one.",
                  RecordPage.do_to_neighbour, args=(-1,)),
            ),
        ),
        *_for_rows(
            *_in(
                "group",
                _("group.left", "left_square_bracket", "shift left", "The attempt before these.",
                  GroupPage.do_group_shift, "", 57, (-1,)),
                _("group.right", "right_square_bracket", "shift right", "The attempt after these.",
                  GroupPage.do_group_shift, "", 56, (1,)),
            ),
        ),
    ),
    *_for_rows(
        *_in(
            "training",
            _("curves.older", "left", "older", "The steps of the column to the left.", Training.do_curves_step,
              args=(-1,)),
            _("curves.newer", "right", "newer", "The steps of the column to the right.", Training.do_curves_step,
              args=(1,)),
            _("curves.tick-before", "left_square_bracket", "tick before", "The event before this one.",
              Training.do_curves_to_tick, args=(-1,)),
            _("curves.tick-after", "right_square_bracket", "next tick", "The event after this one.",
              Training.do_curves_to_tick, args=(1,)),
            _("curves.event", "e", "event", "The event at the cursor.", Training.do_curves_event, "", 57),
            _("curves.metric", "m", "metric", "Which metric is drawn first.", Training.do_curves_metric, "", 58),
            _("curves.next", "n", "next curve", "Curves that did not fit.", Training.do_curves_next, "", 40),
        ),
    ),
    *_in("training", _("curves.wide", "v", "curves only", "Curves alone, or with the table.",
      Training.do_curves_wide, "", 39)),
    *_in("runs", _("runs.key", "f", "key file", "A run elsewhere, by the key file that opens it.",
      Runs.do_runs_key, "", 58)),
    *_for_rows(*_in("calls call", _("calls.replay", "R", "replay", "Executes the call again and compares.",
      _replay, "replay_calls", 56))),
    *_in("calls call replays replay record", _("records.fork", "F", "fork", "Goes on from this place in the record.",
      _fork, "fork_records", 55)),
    *_in(
        "replays",
        _("replays.stop", "p", "hold back", "Those of its command that did not begin wait.",
          Replays.do_replays_stop, "stop_replays", 58),
        _("replays.continue", "c", "go on", "Those of its command that were held back go on.",
          Replays.do_replays_continue, "continue_replays", 57),
        _("replays.keep", "plus equals_sign", "keep", "Notes that the records of the marked replays stay as they are.",
          Replays.do_replays_decide, "keep_replays", 54, (pending_commands.keep_replays,)),
        _("replays.exclude", "x", "exclude", "Keeps the records of the marked replays out of training.",
          Replays.do_replays_decide, "exclude_replayed", 53, (pending_commands.exclude_replayed,)),
    ),
    # tasks, checkpoints, keys
    *_live(
        *_in(
            "records",
            *_by(
                Navigation,
                _("list.tasks", "T", "tasks", "Rows of datasets and what became of them.", _page(Tasks)),
                _("list.replays", "V", "replays", "Tool calls that were executed again.", _page(Replays)),
                _("list.account", "A", "account", "Sums over everything, which must agree.", _page(AccountPage)),
            ),
        ),
    ),
    *_in(
        "tasks",
        _("task.requeue", "r", "requeue", "Samples the selected or the marked tasks again.",
          Tasks.do_task_requeue, "requeue_tasks", 58),
        _("task.add", "a", "add", "Queues the rows of a file.", Tasks.do_task_add, "add_tasks", 57),
    ),
    *_live(*_in("training", *_by(Navigation, _("list.checkpoints", "C", "checkpoints", "What was saved.",
      _page(Checkpoints))))),
    *_in(
        "checkpoints",
        _("checkpoint.pin", "p", "pin", "Retention keeps it.", Checkpoints.do_checkpoint_command,
          "pin_checkpoint", 58, (pending_commands.pin,)),
        _("checkpoint.unpin", "x", "unpin", "Retention may delete it.",
          Checkpoints.do_checkpoint_command, "unpin_checkpoint", 57, (pending_commands.unpin,)),
        _("checkpoint.rollback", "F", "go back here", "Training goes on from this checkpoint; later steps are undone.",
          Checkpoints.do_checkpoint_rollback, "rollback", 56),
    ),
    *_live(*_in("runs", *_by(Navigation, _("list.keys", "K", "keys", "Who may reach this run from elsewhere.",
      _page(Keys))))),
    *_in(
        "keys",
        _("key.new", "n", "new key", "Makes a key file.", Keys.do_key_new, "add_key", 58),
        _("key.revoke", "x", "revoke", "Refuses this key from now on.", Keys.do_key_revoke, "revoke_key", 57),
        _("key.rotate", "R", "rotate", "Replaces the secrets by which the processes of the run know each other.",
          Keys.do_key_rotate, "rotate_keys", 56),
    ),
    # the run
    *_by(CliRunner, _("run.apply", "", "up with a file", "Makes the run equal to a file; shows the plan.",
      CliRunner.do_run_apply, "apply")),
    *_by(
        CommandRunner,
        _("run.pause", "", "pause the run", "No unit takes new work.", CommandRunner.perform, "pause",
          args=(pending_commands.pause("run"),)),
        _("run.resume", "", "resume the run", "All units take work again.", CommandRunner.perform, "resume",
          args=(pending_commands.resume("run"),)),
        _("run.stacks", "", "stacks of all", "Stacks of all units, in one file.",
          CommandRunner.perform, "stacks", args=(pending_commands.stacks(()),)),
        _("run.test-alert", "", "test alert", "Sends a test through every sink.",
          CommandRunner.perform, "test_alert", args=(pending_commands.send_test_alert(),)),
        _("run.down", "", "take the run down", "Stops everything and proves it.", CommandRunner.perform, "down",
          args=(pending_commands.down(),)),
    ),
    replace(
        _("run.up", "B", "bring the run up", "Starts the dead processes of its control plane.", CliRunner.do_run_up),
        target=CliRunner, when=When.LIVE, shells=True,
    ),
    *_recorded(
        *_by(
            PlaybackActions,
            _("playback.play", "P", "play/stop", "Plays the recording, or stops it.", PlaybackActions.do_play, "", 59),
            _("playback.next", "right_curly_bracket", "next", "Goes to the next incident, alert or operation.",
              PlaybackActions.do_step, "", 49, (1, "after")),
            _("playback.previous", "left_curly_bracket", "previous", "Goes to the one before.",
              PlaybackActions.do_step, "", 48, (-1, "before")),
            _("playback.forward", "full_stop", "+10 s", "Ten seconds on.", PlaybackActions.do_jump, "", 44, (JUMP_S,)),
            _("playback.back", "comma", "-10 s", "Ten seconds back.", PlaybackActions.do_jump, "", 43, (-JUMP_S,)),
            _("playback.faster", "right_parenthesis", "faster", "The next higher speed.",
              PlaybackActions.do_hurry, "", 42, (1,)),
            _("playback.slower", "left_parenthesis", "slower", "The next lower speed.",
              PlaybackActions.do_hurry, "", 41, (-1,)),
            _("playback.first", "", "to the beginning", "Where the recording begins.", PlaybackActions.do_jump,
              args=(-math.inf,)),
            _("playback.last", "", "to the end", "Where the recording ends.", PlaybackActions.do_jump,
              args=(math.inf,)),
        ),
    ),
)  # fmt: skip

BY_ID = {action.id: action for action in ACTIONS}


def _has(kind: type[Any], run: Run) -> bool:
    return any(run in vars(base).values() for base in kind.__mro__)


def check(actions: Iterable[Action], services: Iterable[type[Any]]) -> None:
    """Raise LookupError if a view or service that an action names does not have its handler."""
    known = set(services)
    for action in actions:
        closure = action.run.__module__ == __name__
        if action.target is not None:
            if action.target not in known or not (closure or _has(action.target, action.run)):
                raise LookupError(f"The action {action.id} has no handler in {action.target.__name__}.")
            continue
        for name in action.where:
            if name != "table" and not (name in KINDS and (closure or _has(KINDS[name], action.run))):
                raise LookupError(f"The action {action.id} has no handler in the view {name or EVERYWHERE!r}.")
