"""Defines the registry of actions: every action of the console with its keys, labels, command and handler.

Key map, footer, help, palette and the reference in the docs come from here. Actions on the data of a run are in
`tui/data_actions.py`, the views in `tui/view_registry.py`.

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

from agentrl.protocol.control_commands import CollectStacks, Down, Pause, Resume, SendTestAlert
from tui import action_builders, data_actions
from tui.action_builders import ALL_TABLES, action, at, by, for_rows, live, move, page, recorded
from tui.cli_runner import CliRunner
from tui.command_palette import CommandPalette
from tui.command_runner import CommandRunner
from tui.data_actions import DATA_ACTIONS
from tui.export import Exporter
from tui.frame import Frame
from tui.model import pending_commands
from tui.model.actions import EVERYWHERE, UNDO, Action, When
from tui.model.pending_commands import PendingCommand
from tui.navigation import Navigation
from tui.playback_actions import JUMP_S, PlaybackActions
from tui.view_registry import KINDS
from tui.views.alerts import Alerts, AlertVerbs
from tui.views.events import Events
from tui.views.fleet import Fleet, UnitVerbs
from tui.views.hosts import Hosts, HostVerbs
from tui.views.logs import Logs
from tui.views.overview import Overview
from tui.views.query_views import WaitsPage
from tui.views.runs import Runs
from tui.views.training import Training
from tui.views.tuning import KnobVerbs, Tuning
from tui.views.view import TableView

_ = action
ACTIONS: tuple[Action, ...] = (
    *by(
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
    *by(
        CommandPalette,
        _("help", "question_mark", "help", "All keys of this screen.", CommandPalette.do_help, "", 60),
        _("palette", "colon ctrl+p", "command", "Any action by its name, or a command line.",
          CommandPalette.do_palette, "", 45),
    ),
    *by(
        Navigation,
        _("back", "escape", "back", "One step back: closes a page or ends a filter.", Navigation.do_back),
        _("quit", "q", "quit", "Leaves the console. The run goes on.", Navigation.do_quit, "", 60),
        *at(f"{ALL_TABLES} logs", _("filter", "slash", "filter", "Only rows with these words.",
          Navigation.do_filter, "", 51)),
    ),
    *live(
        *by(CommandRunner, _(UNDO, "u", "undo", "Takes the last command back, within 10 s.", CommandRunner.do_undo)),
        *by(Navigation, _("why", "w", "why", "Who waits for whom, and the cause.", page(WaitsPage), "", 20)),
    ),
    *by(Frame, _("freeze", "z", "freeze", "Stops and resumes repainting; the data goes on.", Frame.do_freeze)),
    *by(Navigation, _("copy-line", "Y", "copy", "Copies the command line that does or shows the same.",
      Navigation.do_copy_line)),
    *by(Frame, _("theme", "", "theme", "Dark or light.", Frame.do_theme)),
    *by(Exporter, _("screenshot", "f12", "picture", "Writes an SVG picture of the screen.", Exporter.do_screenshot)),
    *at(ALL_TABLES, _("export", "E", "export", "Writes the rows of this table to a file: JSON, JSONL or CSV.",
      TableView.do_export)),
    # hosts
    *at("overview fleet", *by(Navigation, _("list.hosts", "H", "hosts", "Hosts: what runs where, and what waits.",
      page(Hosts), "", 34))),
    *at(
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
    *at(
        "fleet",
        _("unit.more", "plus equals_sign", "more", "One unit more in this group.", Fleet.do_scale, "scale", 58, (1,)),
        _("unit.fewer", "minus", "fewer", "One unit fewer in this group.", Fleet.do_scale, "scale", 57, (-1,)),
    ),
    *at(
        "fleet unit",
        _("unit.restart", "r", "restart", "A new incarnation of this unit.", UnitVerbs.do_unit_command, "restart", 56,
          (pending_commands.restart,)),
    ),
    *at("fleet", _("group.restart", "R", "restart group", "New incarnations of the whole group.",
      Fleet.do_group_restart, "restart")),
    *at(
        "fleet unit",
        _("unit.drain", "d", "drain", "Finishes its work, then stops.", UnitVerbs.do_unit_command, "drain", 55,
          (pending_commands.drain,)),
        _("unit.undrain", "D", "work on", "Cancels a drain.", UnitVerbs.do_unit_command, "drain",
          args=(partial(pending_commands.drain, cancel=True),)),
        _("unit.stop", "s", "stop", "Stops it until a restart.", UnitVerbs.do_unit_command, "stop", 54,
          (pending_commands.stop,)),
        _("unit.kill", "K", "kill", "Stops it without letting it finish.", UnitVerbs.do_unit_command, "stop",
          args=(partial(pending_commands.stop, now=True),)),
        _("unit.vouch", "V", "vouch", "Says that a lost unit is dead.", UnitVerbs.do_unit_confirm, "force_stopped"),
        _("unit.pause", "p", "pause/resume", "Stops or resumes taking new work.", UnitVerbs.do_unit_pause, "pause", 30),
        _("unit.logs", "l", "logs", "What it writes.", UnitVerbs.do_unit_logs, "", 53),
        _("unit.previous", "L", "last life", "The log of its incarnation before this one.", UnitVerbs.do_unit_previous),
        _("unit.incident", "i", "incident", "Its newest unplanned end.", UnitVerbs.do_unit_incident, "", 52),
        _("unit.stacks", "S", "stacks", "Stacks of this or the marked units.", UnitVerbs.do_unit_stacks, "stacks", 25),
    ),
    *at(
        "overview",
        _("cure.1", "a", "1st cure", "Opens the first alert.", Overview.do_open_alert, args=(0,)),
        _("cure.2", "b", "2nd cure", "Opens the second alert.", Overview.do_open_alert, args=(1,)),
        _("cure.3", "c", "3rd cure", "Opens the third alert.", Overview.do_open_alert, args=(2,)),
    ),
    *at(
        "alerts alert",
        _("alert.cure", "c", "cure", "Does what the alert suggests.", AlertVerbs.do_alert_cure, "", 58),
        _("alert.ack", "a", "acknowledge", "Says that a person works on it.",
          AlertVerbs.do_alert_ack, "acknowledge", 57),
        _("alert.silence", "s", "silence", "Sends nothing for a while.", AlertVerbs.do_alert_silence, "silence", 56),
    ),
    *at("alerts", _("alert.all", "t", "resolved too", "Shows or hides resolved alerts.", Alerts.do_alert_all)),
    # tuning
    *at("tuning knob", _("knob.undo", "U", "undo knob", "Takes back its last change.",
      KnobVerbs.do_knob_undo, "undo_tune", 56)),
    *at(
        "tuning",
        _("knob.bound", "b", "bound", "The staleness bound, with ready records by age.", Tuning.do_knob_bound, "", 49),
        _("knob.less", "left", "less", "What a tighter bound would do; nothing is changed.", Tuning.do_knob_try,
          args=(-1,)),
        _("knob.more", "right", "more", "What a looser bound would do; nothing is changed.", Tuning.do_knob_try,
          args=(1,)),
        *live(_("knob.history", "h", "history", "Every change of this knob.", Tuning.do_knob_history, "", 55)),
    ),
    *at("events", _("events.kind", "t", "kind", "All events, then one kind after the other.",
      Events.do_events_kind, "", 58)),
    *at(
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
    *for_rows(
        *at(ALL_TABLES, _("drill", "enter", "open", "Everything about the selected row.", TableView.do_open, "", 50)),
    ),
    *at(
        ALL_TABLES,
        _("sort-left", "less_than_sign", "sort by left", "Sorts by the column before.", TableView.do_sort, args=(-1,)),
        _("sort-right", "greater_than_sign", "sort by right", "Sorts by the next column.",
          TableView.do_sort, args=(1,)),
        _("sort-turn", "o", "turn order", "Reverses the order.", TableView.do_sort_turn),
    ),
    *for_rows(
        *at(
            "fleet tasks records calls replays reviews evaluations",
            _("mark", "space", "mark", "For a command on several rows.", TableView.do_mark, "", 10),
            _("mark.all", "asterisk", "mark all", "Marks all rows that are shown, or removes all marks.",
              TableView.do_mark_all),
        ),
        *at(
            "table",
            _("move.up", "up k", "up", "One row up.", move("up")),
            _("move.down", "down j", "down", "One row down.", move("down")),
            _("move.page-up", "pageup ctrl+b", "page up", "A screen up.", move("page-up")),
            _("move.page-down", "pagedown ctrl+f", "page down", "A screen down.", move("page-down")),
            _("move.first", "home g", "first", "The first row, which the cursor follows.", move("first")),
            _("move.last", "end G", "last", "The last row.", move("last")),
        ),
    ),
    *at(
        "logs",
        _("move.left", "left", "left", "The beginning of long lines.", move("left")),
        _("move.right", "right", "right", "More of long lines.", move("right")),
    ),
    *DATA_ACTIONS,
    *for_rows(
        *at(
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
    *at("training", _("curves.wide", "v", "curves only", "Curves alone, or with the table.",
      Training.do_curves_wide, "", 39)),
    *at("runs", _("runs.key", "f", "key file", "A run elsewhere, by the key file that opens it.",
      Runs.do_runs_key, "", 58)),
    # the run
    *by(CliRunner, _("run.apply", "", "up with a file", "Makes the run equal to a file; shows the plan.",
      CliRunner.do_run_apply, "apply")),
    *by(
        CommandRunner,
        _("run.pause", "", "pause the run", "No unit takes new work.", CommandRunner.perform, "pause",
          args=(PendingCommand(Pause()),)),
        _("run.resume", "", "resume the run", "All units take work again.", CommandRunner.perform, "resume",
          args=(PendingCommand(Resume()),)),
        _("run.stacks", "", "stacks of all", "Stacks of all units, in one file.",
          CommandRunner.perform, "stacks", args=(PendingCommand(CollectStacks()),)),
        _("run.test-alert", "", "test alert", "Sends a test through every sink.",
          CommandRunner.perform, "test_alert", args=(PendingCommand(SendTestAlert()),)),
        _("run.down", "", "take the run down", "Stops everything and proves it.", CommandRunner.perform, "down",
          args=(PendingCommand(Down()),)),
    ),
    replace(
        _("run.up", "B", "bring the run up", "Starts the dead processes of its control plane.", CliRunner.do_run_up),
        target=CliRunner, when=When.LIVE, shells=True,
    ),
    *recorded(
        *by(
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

CLOSURES = (__name__, action_builders.__name__, data_actions.__name__)
"""The modules whose functions are handlers of any view."""
BY_ID = {action.id: action for action in ACTIONS}


def _has(kind: type[Any], run: Callable[..., None]) -> bool:
    return any(run in vars(base).values() for base in kind.__mro__)


def check(actions: Iterable[Action], services: Iterable[type[Any]]) -> None:
    """Raise LookupError if a view or service that an action names does not have its handler."""
    known = set(services)
    for each in actions:
        closure = each.run.__module__ in CLOSURES
        if each.target is not None:
            if each.target not in known or not (closure or _has(each.target, each.run)):
                raise LookupError(f"The action {each.id} has no handler in {each.target.__name__}.")
            continue
        for name in each.where:
            if name != "table" and not (name in KINDS and (closure or _has(KINDS[name], each.run))):
                raise LookupError(f"The action {each.id} has no handler in the view {name or EVERYWHERE!r}.")
