"""Actions on the data of a run: records, tool calls, replays, reviews, tool servers, tasks, checkpoints.

Invariant: recordings do not contain answers of the steward or a toolbox, so these actions are not offered in a
recording.
"""

from __future__ import annotations

from agentrl.protocol.data_changes import ExcludeReplayed, KeepReplays, PinCheckpoint, UnpinCheckpoint
from agentrl.protocol.data_commands import MALFORMED
from tui.action_builders import action, at, by, for_rows, live, page
from tui.model.actions import Action
from tui.navigation import Navigation
from tui.views.calls import CallPage, Calls, ToolErrors, filter_from
from tui.views.evaluations import Evaluations
from tui.views.fleet import UnitVerbs
from tui.views.forks import fork_call, fork_record, fork_replays
from tui.views.other_models import ChangeVerb, OtherModels
from tui.views.query_views import QueryPage, RecordLinksPage
from tui.views.records import AttemptsVerb, FoldingPage, GroupPage, RecordPage, Records
from tui.views.replays import ReplayPage, Replays, replay
from tui.views.reviews import Reviews
from tui.views.stored_tables import AccountPage, Checkpoints, Keys, Tasks
from tui.views.tools import ToolList, ToolServers, ToolSessions
from tui.views.view import View

_RECORD_LINKS = "step task record call evaluation other-model"
"""Pages that name records."""
_QUERIED = f"answer {_RECORD_LINKS} group replay comparison"
"""Pages that are queried once, when they are opened."""


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
    """Replay the call of a page; in a list, the marked calls or the selected one."""
    if isinstance(view, CallPage):
        replay(view, [view.call], arguments=view.arguments)
        return
    marked = sorted(view.table.model.marked)
    if not marked and (row := view.selected()) is not None:
        marked = [str(row["id"])]
    replay(view, marked)


_ = action
DATA_ACTIONS: tuple[Action, ...] = (
    # answers of the steward, which no recording has
    *live(
        *at(
            "records",
            *by(Navigation, _("records.errors", "e", "tool errors", "Failed tool calls by kind.",
              page(ToolErrors), "", 58)),
            _("records.under-way", "s", "under way", "Records that have not ended, the oldest first.",
              Records.do_records_under_way, "", 57),
        ),
        *at("fleet unit", _("unit.exclude", "x", "exclude",
          "Keeps out of training what the engine generated since its last passed canary.",
          UnitVerbs.do_unit_exclude, "exclude_records")),
        *at("overview fleet", *by(Navigation, _("list.tools", "T", "tools",
          "Tool servers, their tools, sandboxes and sessions.", page(ToolServers), "", 35))),
        *for_rows(*at("tool-servers tools tool-sessions",
          _("tools.restart", "r", "restart", "Replaces the processes of the server, or the sandbox, as sessions end.",
            ToolList.do_tool_restart, "restart_tool", 56, (False,)),
          _("tools.kill", "K", "kill", "Replaces them at once, with the sessions that they have.",
            ToolList.do_tool_restart, "restart_tool", 0, (True,)))),
        *for_rows(*at("tool-servers tools tool-sessions", _("tools.logs", "l", "logs",
          "What the server or the sandbox wrote to its log.", ToolList.do_tool_logs, "", 54))),
        *for_rows(*at("tool-sessions", _("tools.release", "x", "release",
          "Closes the session, and cancels its calls.", ToolSessions.do_session_release, "release_session", 55))),
        *for_rows(*at("tool-servers", _("tools.sandboxes", "s", "sandboxes",
          "The sandboxes and sessions of the selected server.", ToolServers.do_open_sandboxes, "", 57))),
        *at("overview records tool-errors record tool-servers tools tool-sessions", _("calls", "t", "tool calls",
          "Tool calls one by one: all, those of the kind of error, or those of the record.", _open_calls, "", 56)),
        *at("calls", _("calls.failed", "f", "failed only", "Only calls that failed, or all.",
          Calls.do_calls_failed, "", 58)),
        *at(
            "records",
            _("records.exclude", "x", "exclude", "Keeps the selected or the marked records out of training.",
              Records.do_records_change, "exclude_records", 54, ("exclude",)),
            _("records.requeue", "r", "requeue", "Attempts the seats of the selected or the marked records again.",
              Records.do_records_change, "requeue_records", 53, ("requeue",)),
            _("records.cancel", "K", "cancel", "Ends the selected or the marked records, and stops their episodes.",
              Records.do_records_change, "cancel_records", 52, ("cancel",)),
            _("records.rescore", "S", "score again", "Scores the selected or the marked records again.",
              Records.do_records_change, "rescore_records", 51, ("rescore",)),
            *by(Navigation, _("list.reviews", "v", "review", "Records that a person should look at, and why.",
              page(Reviews), "", 49)),
        ),
        *at(
            "reviews",
            _("review.good", "plus equals_sign", "good", "Notes on the selected or the marked records: good.",
              Reviews.do_review, "review_records", 58, ("good",)),
            _("review.bad", "minus", "bad", "Notes: bad. `x` in records excludes them.",
              Reviews.do_review, "review_records", 57, ("bad",)),
            _("review.golden", "D", "golden", "Notes: golden, good enough for a dataset.",
              Reviews.do_review, "review_records", 56, ("golden",)),
        ),
        *at("records", _("records.export", "X", "export whole", "Writes whole trajectories of this filter to a file.",
          Records.do_records_export)),
        *for_rows(*at(_RECORD_LINKS, _("page.record", "enter", "a record", "One of its records, or another attempt.",
          RecordLinksPage.do_page_record, "", 50))),
        *at("record group call", _("record.unfold", "f", "unfold", "Folds and unfolds long texts.",
          FoldingPage.do_record_unfold, "", 58)),
        *at(_QUERIED, _("page.again", "r", "again", "Asks the steward again.", QueryPage.do_page_again, "", 53)),
        *at(
            "record",
            _("record.colour", "c", "tokens by", "By weights, log-prob or training.",
              RecordPage.do_record_colour, "", 57),
            _("record.tree", "b", "branches", "The tree of its tokens, with jumps.", RecordPage.do_record_tree, "", 56),
        ),
        *for_rows(
            *at("records record", _("record.group", "a", "attempts", "The attempts of its group side by side.",
              AttemptsVerb.do_record_group, "", 55)),
            *at(
                "record",
                _("record.next-turn", "right_square_bracket", "next turn", "The turn after this one.",
                  RecordPage.do_to_neighbour, args=(1,)),
                _("record.previous-turn", "left_square_bracket", "turn before", "The turn before this one.",
                  RecordPage.do_to_neighbour, args=(-1,)),
            ),
        ),
        *for_rows(
            *at(
                "group",
                _("group.left", "left_square_bracket", "shift left", "The attempt before these.",
                  GroupPage.do_group_shift, "", 57, (-1,)),
                _("group.right", "right_square_bracket", "shift right", "The attempt after these.",
                  GroupPage.do_group_shift, "", 56, (1,)),
            ),
        ),
    ),
    *for_rows(*at("calls call", _("calls.replay", "R", "replay", "Executes the call again and compares.",
      _replay, "replay_calls", 56))),
    *at("calls call replays replay record", _("records.fork", "F", "fork", "Goes on from this place in the record.",
      _fork, "fork_records", 55)),
    *at(
        "replays",
        _("replays.stop", "p", "hold back", "Those of its command that did not begin wait.",
          Replays.do_replays_stop, "stop_replays", 58),
        _("replays.continue", "c", "go on", "Those of its command that were held back go on.",
          Replays.do_replays_continue, "continue_replays", 57),
        _("replays.keep", "plus equals_sign", "keep", "Notes that the records of the marked replays stay as they are.",
          Replays.do_replays_decide, "keep_replays", 54, (KeepReplays,)),
        _("replays.exclude", "x", "exclude", "Keeps the records of the marked replays out of training.",
          Replays.do_replays_decide, "exclude_replayed", 53, (ExcludeReplayed,)),
    ),
    # tasks, checkpoints, keys
    *live(
        *at(
            "records",
            *by(
                Navigation,
                _("list.tasks", "T", "tasks", "Rows of datasets, with all attempts at them.", page(Tasks)),
                _("list.replays", "V", "replays", "Tool calls that were executed again.", page(Replays)),
                _("list.account", "A", "account", "Sums over everything, which must agree.", page(AccountPage)),
            ),
        ),
    ),
    *at(
        "tasks",
        _("task.requeue", "r", "requeue", "Samples the selected or the marked tasks again.",
          Tasks.do_task_requeue, "requeue_tasks", 58),
        _("task.add", "a", "add", "Queues the rows of a file.", Tasks.do_task_add, "add_tasks", 57),
    ),
    *live(*at("training", *by(Navigation, _("list.checkpoints", "C", "checkpoints", "What was saved.",
      page(Checkpoints))))),
    *at(
        "checkpoints",
        _("checkpoint.pin", "p", "pin", "Retention keeps it.", Checkpoints.do_checkpoint_command,
          "pin_checkpoint", 58, (PinCheckpoint,)),
        _("checkpoint.unpin", "x", "unpin", "Retention may delete it.",
          Checkpoints.do_checkpoint_command, "unpin_checkpoint", 57, (UnpinCheckpoint,)),
        _("checkpoint.rollback", "F", "go back here", "Training goes on from this checkpoint; later steps are undone.",
          Checkpoints.do_checkpoint_rollback, "rollback", 56),
    ),
    *live(*at("runs", *by(Navigation, _("list.keys", "K", "keys", "Who may reach this run from elsewhere.",
      page(Keys))))),
    *at(
        "keys",
        _("key.new", "n", "new key", "Makes a key file.", Keys.do_key_new, "add_key", 58),
        _("key.revoke", "x", "revoke", "Refuses this key from now on.", Keys.do_key_revoke, "revoke_key", 57),
        _("key.rotate", "R", "rotate", "Replaces the secrets by which the processes of the run know each other.",
          Keys.do_key_rotate, "rotate_keys", 56),
    ),
    # evaluations
    *live(*at("overview training", *by(Navigation, _("list.evaluations", "V", "evaluations",
      "What versions and result files came to, with progress.", page(Evaluations), "", 19)))),
    *at(
        "evaluations",
        _("evaluation.compare", "c", "compare", "Two marked models, or the selected one with the one before it.",
          Evaluations.do_evaluation_compare, "", 58),
        _("evaluation.file", "f", "file", "Shows a file of `agentrl eval run` as well.",
          Evaluations.do_evaluation_file, "", 57),
        _("evaluation.rollback", "F", "go back here", "Training goes on from its checkpoint; later steps are undone.",
          Evaluations.do_evaluation_rollback, "rollback", 56),
    ),
    # other models
    *live(*at("overview records", *by(Navigation, _("list.models", "M", "other models",
      "Judges, users and summaries: calls, cost, services that answer.", page(OtherModels), "", 18)))),
    *at("other-models other-model", _("models.change", "c", "change", "Takes a changed run file, which holds at once.",
      ChangeVerb.do_models_change, "apply", 58)),
)  # fmt: skip
