"""Keys that come faster than views: moves before a view is composed, enter before its rows; and faults of one view."""

from __future__ import annotations

import asyncio
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from textual import events

from agentrl.config import paths
from agentrl.protocol.data_commands import Page
from tests.cli.scripted import Scripted
from tests.tui.conftest import Screen, opened, populate
from tests.tui.steward_answers import RECORD, answers, row
from tests.tui.test_commands_sent import DISRUPTIVE
from tests.tui.test_curves import trained
from tests.tui.test_record_pages import attempts
from tests.tui.test_terminal import terminal
from tests.waiting import aeventually
from tui.action_registry import ACTIONS
from tui.app import CRASH_FILE
from tui.model import overview_blocks
from tui.model.actions import VIEWS
from tui.views.calls import ToolErrors
from tui.views.fleet import Fleet
from tui.views.records import Records

MOVES = tuple(key for action in ACTIONS if "table" in action.where for key in action.keys)
OPENERS = (
    *(str(digit) for digit, _ in enumerate(VIEWS, 1)),
    *("7 e", "7 c", "7 T", "7 A", "7 a", "7 enter", "7 T enter", "7 enter b", "8 C", "8 C enter", "8 enter", "9 K"),
    *("9 K enter", "7 e enter", "7 c enter", "2 enter", "2 i", "2 l", "3 enter", "4 enter", "5 h", "1 a", "1 w"),
)


def send(screen: Screen, keys: str) -> None:
    """Put keys into the queue at once, as one packet of a terminal does."""
    for key in keys.split():
        character = key if len(key) == 1 else None
        screen.app.post_message(events.Key(key, character))


async def taken(screen: Screen) -> None:
    """Wait until all keys are taken, also those that wait for rows."""
    seen = asyncio.Event()
    screen.app.call_later(seen.set)
    await seen.wait()
    await aeventually(lambda: screen.app.view.ready and not screen.app._waiting, what="the end of the waiting keys")


async def test_every_move_right_after_the_key_that_opens_a_view(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        for keys in OPENERS:
            for move in MOVES:
                send(screen, f"{keys} {move}")
            await taken(screen)
            assert len(screen.app.screen_stack) == 1, f"{keys} opened a dialog"
        for number, view in enumerate(VIEWS, 1):
            send(screen, f"{number} down")
            await aeventually(lambda view=view: screen.app.view.name_in_registry == view)
        assert not screen.app.faults


def test_move_in_the_packet_that_opens_a_page_leaves_the_console_running(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    pages = ("7e", "7c", "7T", "7A", "7a", "8C", "9K", "7\r", "7e\r", "7T\r", "2\r", "1w")
    with terminal(coordinator.state_dir.parent.parent, source=("--run", "demo"), **_home(coordinator)) as screen:
        screen.shows("Needs you", 0)
        for keys, move in product(pages, ("j", "k", "g", "G", "\x1b[B", "\x1b[6~", "j\r", "jjjj\x1b")):
            screen.press(f"{keys}{move}")
            screen.drained()
        since = len(screen.seen)
        screen.press("\x1b")
        screen.press("9j")
        screen.shows("runs", since)
    assert not (coordinator.state_dir.parent / CRASH_FILE).exists()


def _home(coordinator: Scripted) -> dict[str, str]:
    return {"AGENTRL_HOME": str(coordinator.state_dir.parent), "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}


@pytest.mark.parametrize(
    ("query", "keys", "shown"),
    [
        ("list_records", "7 down enter", RECORD),
        ("tool_errors", "7 e enter", "answered (policy)"),
        ("list_calls", "7 t enter", "calls of this session"),
        ("list_calls", "7 t R", "Execute"),
        ("list_tasks", "7 T enter", "its attempts"),
        ("show_task", "7 T enter enter", "answered (policy)"),
        ("list_steps", "8 enter", "its records"),
    ],
)
async def test_keys_before_the_rows_wait_for_them(coordinator: Scripted, query: str, keys: str, shown: str) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        coordinator.hold(query)
        send(screen, keys)
        await aeventually(lambda: coordinator.waiting(query), what="the query")
        await aeventually(lambda: screen.app._waiting, what="keys that wait")
        assert shown not in screen.text
        coordinator.let_go(query)
        await screen.shows(shown)
        assert not screen.app._waiting


async def test_attempts_shift_only_after_all_of_them_have_arrived(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    stories = attempts("seven", "eight", "nine", "ten")
    coordinator.answers["list_records"] = lambda _: Page(tuple(row(id) for id in stories))
    coordinator.answers["show_record"] = lambda args: stories[args.id]
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        coordinator.hold("show_record")
        send(screen, "7 a right_square_bracket")
        await aeventually(lambda: coordinator.waiting("show_record"), what="the attempts")
        assert screen.app.view.awaits_rows, "the answer with the ids is there, their attempts are not"
        coordinator.let_go("show_record")
        await screen.shows("attempts 2-3 of 4")
        assert not screen.app.view.awaits_rows


async def test_column_of_the_curves_is_chosen_after_the_steps_have_come(coordinator: Scripted) -> None:
    trained(coordinator)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        coordinator.hold("list_steps")
        send(screen, "8 left left")
        await aeventually(lambda: coordinator.waiting("list_steps"), what="the query")
        await aeventually(lambda: screen.app._waiting, what="keys that wait")
        coordinator.let_go("list_steps")
        await screen.shows("step 37 ")


async def test_key_that_needs_no_rows_acts_at_once_and_drops_those_that_wait(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        coordinator.hold("tool_errors")
        send(screen, "7 e enter escape")
        await aeventually(lambda: isinstance(screen.app.view, Records) and not screen.app._waiting)
        coordinator.let_go("tool_errors")
        await screen.shows(f"▸ {RECORD[:8]}")
        assert isinstance(screen.app.view, Records)


async def test_keys_for_a_dialog_wait_for_the_key_that_opens_it(coordinator: Scripted) -> None:
    trained(coordinator)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        coordinator.hold("list_steps")
        send(screen, "8")
        await aeventually(lambda: coordinator.waiting("list_steps") and screen.app.view.ready, what="the query")
        # The second letter turns the order of a list where no dialog is open, and needs no rows for it.
        send(screen, "m l o s s enter")
        await aeventually(lambda: screen.app._waiting, what="keys that wait")
        coordinator.let_go("list_steps")
        await aeventually(lambda: screen.text.find("reward_mean") > screen.text.find("loss 0.025") > 0)


async def test_command_before_the_rows_is_refused_and_does_not_wait(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        coordinator.hold("list_checkpoints")
        send(screen, "8 C p")
        await screen.shows("the screen is more than 5 s old")
        coordinator.let_go("list_checkpoints")
        await screen.shows("step-9")
    assert not coordinator.sent("pin_checkpoint")


async def test_filter_typed_in_the_packet_that_opens_its_list_is_entered(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        send(screen, "7 t slash t u r n > 3 enter")
        await aeventually(lambda: [args.filter for args in coordinator.sent("list_calls")][-1] == "turn>3")  # type: ignore[attr-defined]


# ---- faults ----


def _fault(*_: Any) -> Any:
    raise KeyError("a fault of this view")


async def test_fault_in_drawing_one_view_leaves_the_others(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    monkeypatch.setattr(overview_blocks, "blocks", _fault)
    populate(coordinator)
    async with opened(coordinator.state_dir, (140, 40), faults=True) as screen:
        await screen.shows("A fault of the console", "The rest of the console goes on.")
        assert "_fault" in (paths.home() / CRASH_FILE).read_text()
        await screen.press("2")
        await screen.shows("web-1", "● ready")


async def test_fault_in_an_action_leaves_the_view_alive(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    monkeypatch.setattr(Fleet, "open_row", _fault)
    populate(coordinator)
    async with opened(coordinator.state_dir, (140, 40), faults=True) as screen:
        await screen.press("2")
        await screen.shows("web-1")
        await screen.press("enter")
        await screen.shows("A fault of the console in open: KeyError", str(paths.home() / CRASH_FILE)[:40])
        await screen.press("down", "i")
        await screen.shows("has no incident on record")


async def test_fault_in_a_row_or_a_query_leaves_the_rest_alive(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    monkeypatch.setattr(Fleet, "takes", lambda self, row: _fault() if row.unit == "web-1" else True)
    monkeypatch.setattr(ToolErrors, "ask", _fault)
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (140, 40), faults=True) as screen:
        await screen.press("2")
        await screen.shows("A fault of the console in show unit/web-1: KeyError", "web-0", "web-2")
        await screen.press("7", "e")
        await screen.shows("A fault of the console in kinds of tool errors: KeyError")
        await screen.press("escape")
        await screen.shows(RECORD)
        await screen.press("1")
        await screen.shows("Needs you")


# ---- escape and a key in one packet ----


@pytest.mark.parametrize("opens", ["colon", "question_mark", "2 enter", "2 slash", "5 enter", "2 r"])
async def test_escape_and_colon_in_one_packet_leave_and_open_the_palette(coordinator: Scripted, opens: str) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = DISRUPTIVE
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press(*opens.split())
        if opens == "2 r":
            await screen.shows("restart judge-0")
        send(screen, "alt+colon b r i n g")
        await screen.shows("bring the run up", "│ bring ")
        assert len(screen.app.screen_stack) == 2, "the dialog before is closed"
        assert not coordinator.sent("restart")


async def test_escape_and_enter_in_one_packet_do_not_agree(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = DISRUPTIVE
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("2", "r")
        await screen.shows("restart judge-0")
        send(screen, "alt+enter")
        await aeventually(lambda: len(screen.app.screen_stack) == 1)
        await taken(screen)
        await screen.press("2", "r")
        await screen.shows("restart judge-0")
        send(screen, "alt+r")
        await aeventually(lambda: len(screen.app.screen_stack) == 1)
        assert not coordinator.sent("restart")


async def test_words_in_the_packet_that_opens_the_palette_are_entered(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        send(screen, "2 colon w e b")
        await screen.shows("│ web ")
