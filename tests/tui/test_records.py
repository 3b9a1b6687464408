"""Lists of what was made, asked for while they are looked at, and where they lead."""

from __future__ import annotations

from typing import Any

import msgspec

from agentrl.errors import UnavailableError
from agentrl.protocol import data
from tests.cli.scripted import Scripted
from tests.tui.conftest import HOSTILE, opened, populate
from tests.tui.steward import RECORD, answers, row, story
from tests.tui.test_screens import whole
from tests.waiting import aeventually


async def test_a_filter_goes_to_the_steward_when_it_is_whole(coordinator: Scripted) -> None:
    populate(coordinator)
    asked = answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("slash")
        await screen.type("score>0.5")
        assert {args.filter for args in asked} == {""}
        await screen.press("enter")
        await aeventually(lambda: asked[-1].filter == "score>0.5")
        await screen.press("slash")
        await screen.type("nonsense")
        await screen.press("enter")
        await screen.shows("There is no field named nonsense. Did you mean score?")


async def test_errors_of_tools_lead_to_a_trajectory_and_steps_to_their_records(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("e")
        await screen.shows("192", "shop.lookup", "malformed", "no bracket")
        await screen.press("enter")
        await screen.shows("answered (policy)")
        await screen.press("8")
        await screen.shows("trainer-0.1/000007", "0.75", "64")
        await screen.press("enter")
        await screen.shows("gradient_norm 1.5", "its records (1 of 64)", RECORD)


async def test_enter_leads_from_steps_tasks_and_attempts_to_records(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    other = "shop/train/0/000012#r1.s3.a0"
    both = (row(other, outcome="engine died"), row(RECORD))
    coordinator.answers["show_record"] = lambda args: msgspec.structs.replace(
        story(), record=row(args.id), attempts=both
    )
    coordinator.answers["show_task"] = lambda args: data.Story({"id": args.id}, both)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("8")
        await screen.shows("trainer-0.1/000007")
        await screen.press("enter")
        await screen.shows("its records (1 of 64)")
        await screen.press("enter")
        await screen.shows(f"▸ {RECORD}", "answered (policy)")
        await screen.press("enter")
        await screen.shows(f"▸ {other}")
        await screen.press("7", "T")
        await aeventually(lambda: screen.app.view.query_one("Table").model.target)  # type: ignore[attr-defined]
        await screen.press("enter")
        await screen.shows("its attempts (2 of 2)")
        await screen.press("enter")
        await screen.shows("000012#r1.s3.a0", "engine died", "000012#r1.s3.a1")
        await screen.press("down", "enter")
        await screen.shows(f"▸ {RECORD}", "answered (policy)")
        await screen.press("escape")
        await screen.shows("its attempts (2 of 2)")


async def test_what_is_under_way_comes_oldest_first_and_all_of_it_again(coordinator: Scripted) -> None:
    populate(coordinator)
    asked = answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        assert (asked[-1].filter, asked[-1].sort) == ("", "-started_at")
        await screen.press("s")
        await aeventually(lambda: (asked[-1].filter, asked[-1].sort) == ("status=running", "age"))
        await screen.shows("/status=running", "tool call shop.lookup")
        assert screen.app.view.cli_line() == ("records", "list", "--filter", "status=running", "--sort", "age")
        await screen.press("s")
        await aeventually(lambda: (asked[-1].filter, asked[-1].sort) == ("", "-started_at"))


async def test_the_account_says_what_agrees_and_what_does_not(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("7", "A")
        await screen.shows("✓ All sums agree.", "tasks (train): 32 = 2 dead + 30 trained", "7 committed; 64 records")
        answers(coordinator, "whatever")
        await screen.press("7", "colon")
        await screen.type("accounting")
        await screen.press("enter")
        await screen.shows("does not agree: 3 records of no task whatever", RECORD)
        assert "All sums agree" not in screen.text
        whole(screen, 80, 24)


async def test_what_models_and_tools_said_breaks_no_screen(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator, HOSTILE * 200)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        tokens = (["c"], ["home"], ["c"], ["c"], ["f"], ["b"], ["end"], ["escape"])
        for keys in (["7"], ["end", "enter"], ["f"], ["end"], *tokens, ["escape"], ["e"], ["c"], ["8"]):
            await screen.press(*keys)
            await screen.shows("data")
            whole(screen, 80, 24)


async def test_while_nobody_answers_that_stands_in_place_of_rows(coordinator: Scripted) -> None:
    populate(coordinator)

    def nobody(_: Any) -> data.Page:
        raise UnavailableError("These are served by the steward, and steward-0 is starting: reading datasets.")

    coordinator.answers["list_records"] = coordinator.answers["list_steps"] = nobody
    async with opened(coordinator.state_dir) as screen:
        for key, nothing in (("7", "no records"), ("8", "no step is committed yet")):
            await screen.press(key)
            await screen.shows("  These are served by the steward", "steward-0 is starting: reading datasets.")
            assert nothing not in screen.text
        coordinator.answers["list_records"] = lambda _: data.Page()
        await screen.press("7")
        await screen.shows("no records")


async def test_a_list_asks_nobody_beneath_a_page_and_is_as_it_was_behind_it(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("end", "enter")
        await screen.shows("answered (policy)")
        workers = [worker for worker in screen.app.workers if worker.name == "records" and not worker.is_finished]
        assert not workers
        await screen.press("escape")
        await screen.shows("RECORD")
        assert screen.app.view.query_one("Table").model.cursor == RECORD  # type: ignore[attr-defined]
