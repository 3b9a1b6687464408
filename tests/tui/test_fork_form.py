"""Forking from a replay, a call and a turn of a record, with the effect before it is sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentrl.protocol import data_changes, data_commands
from agentrl.protocol.effects import Effect
from tests.cli.scripted import Scripted
from tests.tui import steward_answers
from tests.tui.conftest import opened, populate
from tests.waiting import aeventually


@pytest.fixture
def run(coordinator: Scripted) -> Scripted:
    populate(coordinator)
    steward_answers.answers(coordinator)
    for name in ("replay_calls", "fork_records"):
        coordinator.effects[name] = Effect(changes=(f"what {name} does",))
    return coordinator


async def sent(run: Scripted) -> data_changes.ForkRecords:
    await aeventually(lambda: run.sent("fork_records"))
    (args,) = run.sent("fork_records")
    assert isinstance(args, data_changes.ForkRecords)
    return args


async def test_failed_call_is_replayed_and_forked_by_four_keys(run: Scripted) -> None:
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("7", "t")
        await screen.shows("no answer within 5 s")
        await screen.press("R")
        await screen.shows("what replay_calls does")
        await screen.press("enter")
        await aeventually(lambda: run.sent("replay_calls"))
        await screen.shows("flaky 1 of 2")
        await screen.press("F")
        await screen.shows("Fork", "what fork_records does")
        await screen.press("enter")
        args = await sent(run)
        assert args.replays[0].partition("~")[1] == "~"
        assert (args.target, args.times) == ("", 0)
        await screen.shows("base = ")


async def test_form_of_a_fork_sends_its_fields(run: Scripted) -> None:
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("7", "t", "enter")
        await screen.shows("calls of this session")
        await screen.press("F")
        await screen.shows("Fork behind", "what fork_records does")
        await screen.press("x")
        await screen.shows("times must be a number from 1 to 64, or empty.")
        await screen.press("backspace", "4", "tab", "tab")
        await screen.type("out of stock")
        await screen.press("enter")
        args = await sent(run)
        assert (args.times, args.result) == (4, "out of stock")
        assert "/" in args.target.partition("#")[2]


async def test_record_shows_its_lineage_and_is_forked_at_a_turn(run: Scripted) -> None:
    answer: Any = run.answers["show_record"]
    fork = {"kind": "branch", "base": "shop/train/0/000001#r1.s0.a1", "turns": 2, "call": "", "edited": True}

    def forked(args: Any) -> data_commands.RecordStory:
        story: data_commands.RecordStory = answer(args)
        return msgspec.structs.replace(story, record=story.record | {"fork": fork, "forks": ["shop/branch/1"]})

    run.answers["show_record"] = forked
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("7", "enter")
        await screen.shows("branch of shop/train/0/000001#r1.s0.a1: it goes on with turn 2", "forked: shop/branch/1")
        await screen.press("F")
        await screen.shows("place", "message")
        await screen.press("tab", "tab")
        await screen.type("2")
        await screen.press("enter")
        assert (await sent(run)).target.rpartition("/")[2].endswith("2")
