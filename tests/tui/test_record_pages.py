"""Pages of one record: its turns, tokens and branches, and its attempts side by side."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from agentrl.filters.fields import TOOL_CALLS
from agentrl.filters.parser import parse
from agentrl.protocol import data_commands
from tests.cli.scripted import Scripted
from tests.tui.conftest import HOSTILE, Screen, opened, populate
from tests.tui.steward_answers import RECORD, answers, call_story, row, story
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.console_interface import Settings
from tui.model import record_detail
from tui.model.record_detail import RecordView


async def test_record_page_shows_every_turn(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened(coordinator.state_dir, (120, 40)) as screen:
        await screen.press("7")
        await screen.shows(RECORD, "running", "tool call shop.lookup, 42s", "answered")
        await screen.press("end", "enter")
        await screen.shows("answered (policy)", "v3×30 v4×10 at engine-0", "shop.lookup(item='flour') timeout")
        await screen.shows("cannot be read as a call: no bracket", "engine died", "trained in trainer-0.1@1/000007")
        assert "line 8" not in screen.text
        await screen.press("f")
        await screen.shows("line 8")
        await screen.press("escape")
        await screen.shows("RECORD")


async def test_long_text_can_be_read_to_its_end_and_omissions_are_counted(coordinator: Scripted) -> None:
    def told(result: str) -> str:
        said = {**story().turns[0], "tool_calls": [{**story().turns[0]["tool_calls"][0], "result": result}]}
        lines = record_detail.of_record(
            msgspec.structs.replace(story(), turns=(said,)), 80, RecordView(unfolded=True)
        ).lines
        return "".join(part.text.strip() for line in lines for part in line)

    whole_line = "[" + "1234567," * 2500 + "8]"
    assert whole_line in told(whole_line)
    assert "10 more signs" in told("x" * (record_detail.UNFOLDED + 10))


def test_message_of_the_agent_loop_stands_before_its_turn() -> None:
    said = {**story().turns[0], "from_loop": [{"role": "user", "text": "Are you sure?"}]}
    lines = record_detail.of_record(msgspec.structs.replace(story(), turns=(said,)), 80, RecordView()).lines
    texts = ["".join(part.text for part in line) for line in lines]
    assert texts.index("  from the agent loop (user): Are you sure?") < next(
        place for place, text in enumerate(texts) if text.startswith("turn 0")
    )


def long_story(after: int = -1, of: int = 60) -> data_commands.RecordStory:
    turns = tuple({"index": n, "text": f"said {n}\nand more", "parsed": (), "tool_calls": ()} for n in range(of))
    return msgspec.structs.replace(
        story(), turns=tuple(turn for turn in turns if int(str(turn["index"])) > after)[:100]
    )


@pytest.mark.parametrize(("turn", "after"), [(40, -1), (140, 129)])
async def test_failed_call_opens_the_turn_that_made_it(coordinator: Scripted, turn: int, after: int) -> None:
    populate(coordinator)
    answers(coordinator)
    failed = {"id": "x", "record": RECORD, "turn": turn, "server": "shop", "tool": "lookup", "status": "timeout"}
    failed |= {"error_class": "infrastructure", "owner": "sampler-3.1", "requested_at": datetime.now(UTC)}
    asked: list[Any] = []
    sample = data_commands.ToolErrorSample(RECORD, f"{RECORD}/{turn:03d}", "", turn)
    kinds = [
        data_commands.ToolErrorGroup("shop", "lookup", "timeout", "infrastructure", "took # s", 3, samples=(sample,)),
        data_commands.ToolErrorGroup("", "", "malformed", "policy", "no bracket", 2, samples=(sample,)),
    ]
    coordinator.answers["tool_errors"] = lambda _: kinds
    coordinator.answers["list_calls"] = lambda args: (asked.append(args), data_commands.Page((failed,)))[1]
    coordinator.answers["show_call"] = lambda args: call_story(turn=turn)
    coordinator.answers["show_record"] = lambda args: long_story(args.after_turn, 150)
    async with opened(coordinator.state_dir, (150, 24)) as screen:
        await screen.press("7", "e")
        await screen.shows("took # s", "no bracket")
        # Both keys lead from a kind of errors to its calls.
        await screen.press("t" if turn == 40 else "enter")
        await screen.shows("1 call", "sampler-3.1", "timeout", f"t{turn}")
        assert (
            asked[-1].filter == 'server="shop" and tool="lookup" and status="timeout" and error_class="infrastructure"'
        )
        parse(asked[-1].filter, TOOL_CALLS)
        assert asked[-1].error == "took # s", "the list has the calls that were counted"
        assert screen.app.view.cli_line()[:3] == ("calls", "--error", "took # s")
        await screen.press("enter")
        await screen.shows("timeout (infrastructure)")
        await screen.press("enter")
        await screen.shows(f"said {turn}")
        await aeventually(lambda: f"turn {turn}" in screen.lines[2])
        assert [args.after_turn for args in coordinator.sent("show_record")][-1] == after  # type: ignore[attr-defined]
        await screen.press("right_square_bracket")
        await aeventually(lambda: f"turn {turn + 1}" in screen.lines[2])
        await screen.press("left_square_bracket", "left_square_bracket")
        await aeventually(lambda: f"turn {turn - 1}" in screen.lines[2])
        await screen.press("escape", "escape", "escape", "end", "enter")
        await screen.shows(f"said {turn}")
        # Text that could not be parsed as a call opens its turn, too.
        await aeventually(lambda: f"turn {turn}" in screen.lines[2])
        await screen.press("escape", "t")
        await screen.shows("1 call")
        assert asked[-1].filter == "failed=true"


def of_250_turns(args: Any) -> data_commands.RecordStory:
    found = long_story(args.after_turn, 250)
    more = int(str(found.turns[-1]["index"])) < 249
    return msgspec.structs.replace(found, record=row(RECORD, turns=250), more_turns=more)


async def page_moved(screen: Screen, key: str) -> None:
    """A key that leads to turns which are not loaded moves the page when they are; until then others do nothing."""
    await screen.press(key)
    await aeventually(lambda: not screen.app.view.is_querying("page"))
    screen.app._paint_new_data()


async def test_every_turn_of_a_long_record_can_be_reached_by_keys(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)

    coordinator.answers["show_record"] = of_250_turns
    async with opened(coordinator.state_dir, (120, 24)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("end", "enter")
        await screen.shows("said 0")
        screen.app.view.go_to_turn(98)  # type: ignore[attr-defined]
        await screen.shows("said 99", "] or PgDn leads to them")
        await screen.press("right_square_bracket")
        await aeventually(lambda: "turn 100" in screen.lines[2])
        await screen.press("left_square_bracket")
        await aeventually(lambda: "turn 99" in screen.lines[2])
        await screen.press("end")
        await screen.shows("said 249")
        await screen.round()
        for _ in range(4):
            await page_moved(screen, "pageup")
        await screen.shows("said 236")
        await screen.press("home")
        await screen.shows("answered (policy)", "said 0")
        seen, before = set[str](), list[str]()
        while before != screen.lines[2:]:
            before = screen.lines[2:]
            seen |= {line.strip() for line in before if line.strip().startswith("said ")}
            await page_moved(screen, "pagedown")
        assert seen == {f"said {n}" for n in range(250)}
        assert len(screen.app.view._answer.turns) <= 100  # type: ignore[attr-defined]


@pytest.mark.parametrize("plain", [False, True], ids=["colours", "ascii without colours"])
async def test_tokens_differ_by_signs_and_not_by_colours_alone(coordinator: Scripted, plain: bool) -> None:
    populate(coordinator)
    answers(coordinator)
    settings = Settings(ascii_only=plain, colour=not plain)
    v3, v4, rare, rarest, trained, end = "<v3>", "<v4>", "<\n>", "{7}", "<trained>", "$"
    if not plain:
        v3, v4, rarest, trained, end = "⟨v3⟩", "⟨v4⟩", "«7»", "⟨trained⟩", "↵"
    async with opened(coordinator.state_dir, (120, 40), settings) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("end", "enter")
        await screen.shows("line 0")
        await screen.press("c")
        await screen.shows(f"{v3}it costs {v4}7{end}", "tokens by weights", "what costs flour?")
        assert "line 0" not in screen.text
        await screen.press("c")
        await screen.shows(f"it costs {rarest}", "tokens by log-prob")
        await screen.press("c")
        await screen.shows(f"{trained}it costs 7{end}", "tokens by training")
        assert len(coordinator.sent("record_tokens")) == 1, "loaded tokens are not queried again"
        assert not plain or screen.text.isascii()
        await screen.press("c")
        await screen.shows("line 0")
        assert rare not in screen.text


async def test_tree_of_branches_opens_the_turn(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    coordinator.answers["show_record"] = lambda args: long_story()
    async with opened(coordinator.state_dir, (120, 24)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("end", "enter")
        await screen.shows("said 0")
        await screen.press("b")
        await screen.shows("12 tokens, 5 trained", "turn 0 says", "├─ turn 1 gets", "│  turn 1 says", "└─ no turn gets")
        await screen.shows("v3×2 v4×2", "✓ yes", "fine")
        await screen.press("slash")
        await screen.type("fine")
        await screen.press("enter", "enter")
        await screen.shows("said 1")
        await aeventually(lambda: "turn 1" in screen.lines[2])


async def test_tree_of_branches_opens_a_turn_that_is_not_loaded_yet(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    far = data_commands.TokenStretch(
        0, -1, "model", f"{RECORD}/c150", 150, True, ids=(8,), texts=("fine",), log_probs=(-0.1,)
    )
    coordinator.answers["record_tokens"] = lambda _: data_commands.TokenPart((far,), None, 1)

    coordinator.answers["show_record"] = of_250_turns
    async with opened(coordinator.state_dir, (120, 24)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("end", "enter")
        await screen.shows("said 0")
        await screen.press("b")
        await screen.shows("turn 150 says")
        await screen.press("enter")
        await screen.shows("said 150")
        await aeventually(lambda: "turn 150" in screen.lines[2])


async def test_late_answer_does_not_move_a_scrolled_page(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    coordinator.hold("record_tokens")
    async with opened(coordinator.state_dir, (120, 24)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("enter")
        await screen.shows("line 0")
        await screen.press("b", "a", "2")
        await aeventually(lambda: coordinator.waiting("record_tokens"), what="the question")
        coordinator.let_go("record_tokens")
        await screen.press("7", "enter", "2")
        await screen.shows("UNIT▲")
        await aeventually(lambda: not [each for each in screen.app.workers if each.group == "tokens"])
        assert screen.app.view.name_in_registry == "fleet"


def attempts(*texts: str) -> dict[str, data_commands.RecordStory]:
    made = {}
    for number, text in enumerate(texts):
        id = f"shop/train/0/000012#r1.s{number}.a1"
        tool = {"server": "shop", "tool": "lookup", "arguments": {"item": "flour"}, "status": "ok", "result": "7"}
        turns = (
            {"index": 0, "text": "let me look", "parsed": (), "tool_calls": [tool]},
            {"index": 1, "text": text, "parsed": (), "tool_calls": ()},
        )
        end = {"sentence": "answered (policy)"}
        made[id] = data_commands.RecordStory(row(id, score=float(number)), {"query": "how much"}, end, turns)
    return made


@pytest.mark.parametrize(("size", "fits"), [((80, 24), 2), ((120, 40), 3), ((300, 80), 4)])
async def test_attempts_are_shown_side_by_side_with_their_first_difference_marked(
    coordinator: Scripted, size: tuple[int, int], fits: int
) -> None:
    populate(coordinator)
    asked = answers(coordinator)
    stories = attempts(f"seven {HOSTILE * 20}", "seven", "eight", "nine")
    coordinator.answers["show_record"] = lambda args: stories[args.id]
    page = data_commands.Page(tuple(row(id) for id in stories))
    coordinator.answers["list_records"] = lambda args: (asked.append(args), page)[1]
    async with opened(coordinator.state_dir, size) as screen:
        await screen.press("7")
        await screen.shows("#r1.s0.a1")
        await screen.press("a")
        await screen.shows(f"attempts 1-{fits} of 4", "reward 0", "reward 1", "lookup(item='flour')", "they part here")
        assert asked[-1].filter == 'task="shop/train/0/000012" and round=1'
        assert next(line for line in screen.lines if "they part here" in line).strip().startswith("turn 1")
        whole(screen, *size)
        await screen.press("f")
        whole(screen, *size)
        await screen.press("right_square_bracket", "right_square_bracket", "right_square_bracket")
        await screen.shows("nine", "reward 3", f"attempts {5 - fits}-4 of 4")
        await screen.press("left_square_bracket")
        if fits < 4:
            await screen.shows(f"attempts {4 - fits}-3 of 4")


async def test_thinking_is_folded_to_one_line(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    said = {"index": 0, "text": "<think>\nhm, flour\nis dear\n</think>\nIt costs 7.", "parsed": (), "tool_calls": ()}
    coordinator.answers["show_record"] = lambda _: msgspec.structs.replace(story(), turns=(said,))
    async with opened(coordinator.state_dir) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("enter")
        await screen.shows("… thinks, 4 words, f unfolds", "It costs 7.")
        assert "hm, flour" not in screen.text
        await screen.press("f")
        await screen.shows("thinks: hm, flour", "is dear", "It costs 7.")
