"""Lists of the data plane: queries, filters, missing answers, and the pages that they open."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentrl.errors import UnavailableError
from agentrl.protocol import data_changes, data_commands
from tests.cli.scripted import Scripted
from tests.tui.conftest import HOSTILE, opened, populate
from tests.tui.steward_answers import RECORD, answers, row, story
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.model import data_tables
from tui.model.notices import Notices
from tui.views.records import CHANGES, Records


async def test_filter_is_sent_to_the_steward_when_it_is_entered(coordinator: Scripted) -> None:
    populate(coordinator)
    sent = answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("slash")
        await screen.type("score>0.5")
        assert {args.filter for args in sent} == {""}
        await screen.press("enter")
        await aeventually(lambda: sent[-1].filter == "score>0.5")
        await screen.press("slash")
        await screen.type("nonsense")
        await screen.press("enter")
        await screen.shows("There is no field named nonsense. Did you mean score?")


async def test_refused_filter_shows_its_reason_and_keeps_the_cursor(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    why = "There is no field named nonsense. Did you mean score?"
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("end", "slash")
        await screen.type("nonsense = 1")
        await screen.press("enter")
        await screen.shows(f"▸ {RECORD}", why)
        assert "/nonsense" not in screen.lines[1], "the rows are not those of the refused filter"
        await screen.press("f5")
        await screen.shows("means nothing here", why)
        screen.app.say("Something else.")
        await screen.shows("Something else.", why)
        await screen.press("slash", *["backspace"] * len("nonsense = 1"), "enter")
        await aeventually(lambda: why not in screen.text)


async def test_errors_of_tools_open_a_trajectory_and_steps_open_their_records(coordinator: Scripted) -> None:
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


async def test_enter_opens_the_records_of_steps_tasks_and_attempts(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    other = "shop/train/0/000012#r1.s3.a0"
    both = (row(other, outcome="engine died"), row(RECORD))
    coordinator.answers["show_record"] = lambda args: msgspec.structs.replace(
        story(), record=row(args.id), attempts=both
    )
    coordinator.answers["show_task"] = lambda args: data_commands.Story({"id": args.id}, both)
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


async def test_running_records_are_listed_oldest_first(coordinator: Scripted) -> None:
    populate(coordinator)
    sent = answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        assert (sent[-1].filter, sent[-1].sort) == ("", "-started_at")
        await screen.press("s")
        await aeventually(lambda: (sent[-1].filter, sent[-1].sort) == ("status=running", "age"))
        await screen.shows("/status=running", "tool call shop.lookup")
        assert screen.app.view.cli_line() == ("records", "list", "--filter", "status=running", "--sort", "age")
        await screen.press("s")
        await aeventually(lambda: (sent[-1].filter, sent[-1].sort) == ("", "-started_at"))


async def test_typed_list_of_records_has_its_filter_and_order(coordinator: Scripted) -> None:
    populate(coordinator)
    sent = answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.command("records list --filter status=scored --sort -score")
        await aeventually(lambda: [(query.filter, query.sort) for query in sent[-1:]] == [("status=scored", "-score")])
        assert screen.app.view.cli_line() == ("records", "list", "--filter", "status=scored", "--sort", "-score")


async def test_account_lists_sums_that_agree_and_sums_that_do_not(coordinator: Scripted) -> None:
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


async def test_hostile_texts_of_records_break_no_screen(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator, HOSTILE * 200)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        tokens = (["c"], ["home"], ["c"], ["c"], ["f"], ["b"], ["end"], ["escape"])
        for keys in (["7"], ["end", "enter"], ["f"], ["end"], *tokens, ["escape"], ["e"], ["c"], ["8"]):
            await screen.press(*keys)
            await screen.shows("data")
            whole(screen, 80, 24)


async def test_unanswered_list_shows_the_reason_in_place_of_rows(coordinator: Scripted) -> None:
    populate(coordinator)

    def nobody(_: Any) -> data_commands.Page:
        raise UnavailableError("These are served by the steward, and steward-0 is starting: reading datasets.")

    coordinator.answers["list_records"] = coordinator.answers["list_steps"] = nobody
    async with opened(coordinator.state_dir) as screen:
        for key, nothing in (("7", "no records"), ("8", "no step is committed yet")):
            await screen.press(key)
            await screen.shows("  These are served by the steward", "steward-0 is starting: reading datasets.")
            assert nothing not in screen.text
        coordinator.answers["list_records"] = lambda _: data_commands.Page()
        await screen.press("7")
        await screen.shows("no records")


async def test_list_under_a_page_is_not_queried_and_reappears_unchanged(coordinator: Scripted) -> None:
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


async def test_silent_coordinator_is_not_queried_until_it_is_back(coordinator: Scripted) -> None:
    populate(coordinator)
    sent = answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        coordinator.silent = True
        await screen.shows("no connection since")
        view = screen.app.view
        assert isinstance(view, Records)
        # A running query may still be answered.
        await aeventually(lambda: view.why_old().startswith("No coordinator answers: "), what="a question not asked")
        before = len(sent)
        for _ in range(3):
            view._reason = ""
            view._ask_now.set()
            await aeventually(view.why_old, what="another question not asked")
        assert len(sent) == before
        await screen.shows("keeps the units that run.")
        assert screen.text.count("keeps the units that run.") == 1, "the reason is shown once"
        coordinator.silent = False
        await aeventually(lambda: len(sent) > before, what="a question")
        await screen.shows("▸ 2 records ", "data 0 s old")
        await aeventually(lambda: not view.why_old(), what="an answer")


async def test_reason_of_stale_rows_is_shown_as_long_as_they_are_stale(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    told = coordinator.answers["list_records"]

    def refused(args: Any) -> Any:
        raise UnavailableError("No steward is ready.")

    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        coordinator.answers["list_records"] = refused
        await screen.shows(RECORD, "not answered", "No steward is ready.")
        screen.app.notices = Notices()
        await screen.shows(RECORD, ", answered ", "No steward is ready.")
        coordinator.answers["list_records"] = told
        await aeventually(lambda: "No steward" not in screen.text and ", answered" not in screen.text)
        coordinator.answers["list_steps"] = refused
        await screen.press("8")
        await screen.shows("No steward is ready.")
        assert screen.text.count("No steward is ready.") == 1, "in place of the rows, and nowhere else"


@pytest.mark.parametrize(
    ("keys", "question"),
    [
        ("7A", "accounting"),
        ("8↵", "show_step"),
        ("7T↵", "show_task"),
        ("8C↵", "show_checkpoint"),
        ("7↵", "show_record"),
    ],
)
async def test_page_can_be_refreshed_by_key(coordinator: Scripted, keys: str, question: str) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir) as screen:
        for key in keys:
            if key == "↵":
                await aeventually(lambda: screen.app.view.query_one("Table").model.target)  # type: ignore[attr-defined]
            await screen.press("enter" if key == "↵" else key)
        await aeventually(lambda: len(coordinator.sent(question)) == 1)
        await screen.shows("r again")
        await aeventually(lambda: not screen.app.view.is_querying("page"))
        await screen.press("r")
        await aeventually(lambda: len(coordinator.sent(question)) == 2)


@pytest.mark.parametrize(
    ("keys", "filter"),
    [("1 t", ""), ("7 t", ""), ("7 t f", "failed=true"), ("7 t f f", ""), ("7 e t", "failed=true")],
)
async def test_tool_calls_open_by_one_key(coordinator: Scripted, keys: str, filter: str) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press(*keys.split())
        await aeventually(lambda: coordinator.sent("list_calls") and _filter_of_calls(coordinator) == filter)
        await screen.shows("1 call", "shop.lookup")
        assert screen.app.view.cli_line() == (("calls", "--failed") if filter else ("calls",))


def _filter_of_calls(coordinator: Scripted) -> str:
    return str(coordinator.sent("list_calls")[-1].filter)  # type: ignore[attr-defined]


async def test_call_has_a_page_that_leads_to_its_turn_and_a_record_leads_to_its_calls(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("7", "t", "enter")
        await screen.shows("lookup(item=", "timeout (infrastructure)", "call 2 of 2", "▸ t0 shop.lookup")
        assert screen.app.view.cli_line() == ("calls", "show", f"{RECORD}/000.1")
        await screen.press("enter")
        await screen.shows("answered (policy)", "turn 0")
        await screen.press("t")
        await aeventually(lambda: _filter_of_calls(coordinator) == f'record="{RECORD}"')
        await screen.shows("1 call", "shop.lookup")


async def test_all_calls_are_marked_by_one_key_and_unmarked_by_the_same(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    many = tuple({"id": f"{RECORD}/000.{n}", "record": RECORD, "tool": f"tool{n}", "status": "ok"} for n in range(3))
    coordinator.answers["list_calls"] = lambda _: data_commands.Page(many)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("7", "t")
        await screen.shows("3 calls", "tool2")
        marked = screen.app.view.table.model.marked  # type: ignore[attr-defined]
        await screen.press("space")
        assert marked == {f"{RECORD}/000.0"}
        for expected in (3, 0):
            await screen.press("asterisk")
            assert len(screen.app.view.table.model.marked) == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.004, "0.00s"), (0.25, "0.25s"), (9.999, "10.0s"), (42.04, "42.0s"), (99.96, "99s"), (250.0, "4m")],
)
def test_duration_of_a_call_has_its_unit(seconds: float, shown: str) -> None:
    (took,) = (column for column in data_tables.call_columns() if column.name == "took")
    assert took.show({"latency_s": seconds}, 0.0).text == shown
    assert len(shown) <= took.width


async def test_selected_and_marked_records_are_excluded(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 24)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await aeventually(lambda: screen.app.view.query_one("Table").model.select(RECORD))  # type: ignore[attr-defined]
        await screen.press("x")
        await screen.shows(f"Exclude {RECORD} from training")
        await screen.type("leaked answer")
        await screen.press("enter")
        wanted = data_changes.ExcludeRecords((RECORD,), note="leaked answer")
        await aeventually(lambda: coordinator.sent("exclude_records") == [wanted])
        await screen.press("colon")
        await screen.type(f"records exclude {RECORD} other#r1.s0.a1")
        await screen.press("enter")
        both = data_changes.ExcludeRecords((RECORD, "other#r1.s0.a1"))
        await aeventually(lambda: coordinator.sent("exclude_records") == [wanted, both])
        for key, verb in (("r", "requeue"), ("K", "cancel"), ("S", "rescore")):
            await screen.press(key)
            await screen.shows("preview it")
            await screen.press("enter")
            sent = CHANGES[verb]((RECORD,))
            await aeventually(lambda verb=verb, sent=sent: coordinator.sent(f"{verb}_records") == [sent])  # type: ignore[misc]


async def test_verdicts_are_one_key_in_the_review_queue(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (140, 24)) as screen:
        await screen.press("7", "v")
        await screen.shows("it has the score 1 without an answer")
        for key, verdict in (("plus", "good"), ("minus", "bad"), ("D", "golden")):
            await screen.press(key)
            wanted = data_changes.ReviewRecords((RECORD,), verdict=verdict)  # type: ignore[arg-type]
            await aeventually(lambda wanted=wanted: coordinator.sent("review_records")[-1:] == [wanted])  # type: ignore[misc]
        await screen.press("colon")
        await screen.type(f"review mark none {RECORD}")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("review_records")[-1].verdict == "none")  # type: ignore[attr-defined]
        await screen.press("enter")
        await screen.shows("turn")
