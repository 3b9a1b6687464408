"""The registry of actions: one meaning per key, a handler for each, every command of the table within reach."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.messages import Permission
from tui.app import SCREENS, Console
from tui.cli_runner import CliRunner
from tui.command_runner import CommandRunner
from tui.export import Exporter
from tui.model.actions import ACTIONS, EVERYWHERE, VIEWS, Action, of_view, rebound, sign
from tui.navigation import Navigation
from tui.playback_actions import Playing
from tui.prompts import Prompts
from tui.views.detail_pages import AlertPage, UnitPage
from tui.views.failed_calls import FailedCalls, ToolErrors
from tui.views.query_views import StepPage
from tui.views.records import GroupPage, RecordPage, TokenTree
from tui.views.stored_tables import AccountPage, Checkpoints, Keys, TaskPage, Tasks
from tui.views.tuning import KnobPage
from tui.views.view import View

PAGES = (
    StepPage,
    TaskPage,
    AccountPage,
    ToolErrors,
    FailedCalls,
    RecordPage,
    TokenTree,
    GroupPage,
    UnitPage,
    AlertPage,
    KnobPage,
    Tasks,
    Checkpoints,
    Keys,
)
KINDS: dict[str, type[View]] = {kind.name_in_registry: kind for kind in (*SCREENS, *PAGES)}
FOR_ALL = (Navigation, Prompts, CommandRunner, Exporter, Console, Playing, CliRunner)
"""Who carries out what means the same in every view."""
ELSEWHERE: dict[str, str] = {}
"""Commands that stay in the shell, each with its reason: none."""
QUERIES = {
    "status": "the feed tells all of it",
    "snapshot": "the feed begins with it",
    "show_operation": "operations are rows of the feed",
    "knobs": "knobs are rows of the feed",
    "alerts": "alerts are rows of the feed",
}
"""Questions that no view asks, each with its reason."""


@pytest.mark.parametrize("view", KINDS)
def test_within_a_view_no_key_means_two_things(view: str) -> None:
    taken: dict[str, str] = {}
    for action in (*of_view(view), *of_view("table")):
        for key in action.keys:
            assert taken.setdefault(key, action.id) == action.id, key


def own(where: str) -> tuple[type, ...]:
    return () if where == EVERYWHERE else (KINDS[where],)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_does_something_wherever_it_is_offered(action: Action) -> None:
    group, _, name = action.id.partition(".")
    for where in action.where:
        if group == "go":
            assert name in VIEWS
        elif group == "move":
            assert where in ("table", "logs")
        else:
            method = f"do_{action.id.replace('.', '_').replace('-', '_')}"
            able = [owner for owner in (*own(where), *FOR_ALL) if callable(getattr(owner, method, None))]
            assert able, f"{method} in {where}"
            assert len([owner for owner in able if owner in FOR_ALL]) <= 1, f"{method} means two things"
    assert action.help.endswith(".")
    assert not action.command or COMMANDS[action.command].mutates


def test_every_command_that_changes_something_is_within_reach() -> None:
    reached = {action.command for action in ACTIONS} | {"undo_tune", "tune"}
    assert {name for name, spec in COMMANDS.items() if spec.mutates} - reached == set(ELSEWHERE)


def test_every_question_of_the_table_is_asked_by_some_view() -> None:
    root = Path(__file__).parents[2]
    rooms = (*(root / "tui").rglob("*.py"), root / "agentrl/client/long_answers.py")
    written = "\n".join(path.read_text() for path in rooms)
    asked = {name for name in COMMANDS if re.search(rf"\.{name}\(|\"{name}\"", written)}
    questions = {name for name, spec in COMMANDS.items() if not spec.mutates}
    assert questions - asked == set(QUERIES) - asked, "whatever nobody asks has a reason"


def test_nothing_that_changes_a_run_is_offered_to_who_only_reads() -> None:
    changing = [action for action in ACTIONS if action.command or action.shells]
    assert "run.up" in [action.id for action in changing]
    assert not [action.id for action in changing if action.allowed(Permission.ADMIN, read_only=True)]


def test_a_person_may_have_other_keys() -> None:
    changed = rebound({"unit.restart": ("F5",)})
    assert next(action for action in changed if action.id == "unit.restart").keys == ("F5",)


def test_the_reference_in_the_docs_is_the_registry() -> None:
    text = (Path(__file__).parents[2] / "docs" / "console.md").read_text()
    for action in ACTIONS:
        keys = " ".join(f"`{sign(key)}`" for key in action.keys) or "`:`"
        assert f"| {keys} | {action.title} | {action.help} |" in text, action.id
