"""The registry of actions: one meaning per key, a handler for each, and an action for every command of the table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.client import Client
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.messages import Permission
from tui import action_registry
from tui.action_registry import ACTIONS, BY_ID
from tui.app import Console
from tui.connection import Connection
from tui.model.actions import Action, of_view, rebound, sign
from tui.view_registry import KINDS
from tui.views.fleet import Fleet

ELSEWHERE = {
    "exec_in_sandbox": "a shell has room for the words and the output",
}
"""Commands that are only in the shell, each with its reason."""
QUERIES = {
    "status": "the feed tells all of it",
    "snapshot": "the feed begins with it",
    "show_operation": "operations are rows of the feed",
    "knobs": "knobs are rows of the feed",
    "alerts": "alerts are rows of the feed",
    "preview_past": "the coordinator asks it for the preview of a knob",
    "read_image": "a terminal shows no images; the page of `records html` does",
    "show_exec_output": "programs in sandboxes are run in a shell",
}
"""Query commands that no view uses, each with its reason."""


@pytest.mark.parametrize("view", KINDS)
def test_no_key_has_two_meanings_in_one_view(view: str) -> None:
    taken: dict[str, str] = {}
    for action in (*of_view(view, ACTIONS), *of_view("table", ACTIONS)):
        for key in action.keys:
            assert taken.setdefault(key, action.id) == action.id, key


def console() -> Console:
    return Console(lambda mirror: Connection(mirror, Client.connect))


def test_every_action_has_its_handler_wherever_it_is_offered() -> None:
    action_registry.check(ACTIONS, console()._services)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_has_a_help_sentence_and_a_command_that_changes_something(action: Action) -> None:
    assert action.help.endswith(".")
    assert not action.command or COMMANDS[action.command].mutates


@pytest.mark.parametrize(
    "broken",
    [
        replace(BY_ID["unit.restart"], where=("fleet", "alerts")),
        replace(BY_ID["unit.restart"], where=("no such view",)),
        replace(BY_ID["back"], target=Console),
        replace(BY_ID["back"], run=Fleet.do_scale),
    ],
    ids=["a view without the handler", "an unknown view", "an unknown service", "a handler of another class"],
)
def test_console_with_a_missing_handler_does_not_start(broken: Action, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_registry, "ACTIONS", (*ACTIONS, broken))
    with pytest.raises(LookupError, match=f"The action {broken.id} has no handler"):
        console()


def test_every_command_that_changes_something_has_an_action() -> None:
    reached = {action.command for action in ACTIONS} | {"undo_tune", "tune"}
    assert {name for name, spec in COMMANDS.items() if spec.mutates} - reached == set(ELSEWHERE)


def test_every_query_command_is_used_by_a_view() -> None:
    root = Path(__file__).parents[2]
    rooms = (*(root / "tui").rglob("*.py"), root / "agentrl/client/long_answers.py")
    written = "\n".join(path.read_text() for path in rooms)
    sent = {name for name in COMMANDS if re.search(rf"\.{name}\(|\"{name}\"", written)}
    questions = {name for name, spec in COMMANDS.items() if not spec.mutates}
    assert questions - sent == set(QUERIES) - sent, "every unused query has a reason"


def test_read_only_console_offers_no_action_that_changes_the_run() -> None:
    changing = [action for action in ACTIONS if action.command or action.shells]
    assert "run.up" in [action.id for action in changing]
    assert not [action.id for action in changing if action.allowed(Permission.ADMIN, read_only=True)]


def test_keys_can_be_rebound() -> None:
    changed = rebound({"unit.restart": ("F5",)}, ACTIONS)
    assert next(action for action in changed if action.id == "unit.restart").keys == ("F5",)


def test_docs_list_every_action_of_the_registry() -> None:
    text = (Path(__file__).parents[2] / "docs" / "console.md").read_text()
    for action in ACTIONS:
        keys = " ".join(f"`{sign(key)}`" for key in action.keys) or "`:`"
        assert f"| {keys} | {action.title} | {action.help} |" in text, action.id
