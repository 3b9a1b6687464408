"""The form of a replay: its fields are checked while they are typed, and sent."""

from __future__ import annotations

import pytest

from agentrl.protocol import data_changes
from agentrl.protocol.effects import Effect
from tests.cli.scripted import Scripted
from tests.tui import steward_answers
from tests.tui.conftest import opened, populate
from tests.waiting import aeventually


@pytest.fixture
def run(coordinator: Scripted) -> Scripted:
    populate(coordinator)
    steward_answers.answers(coordinator)
    coordinator.effects["replay_calls"] = Effect(changes=("lookup runs again",))
    return coordinator


async def test_form_of_a_replay_checks_its_fields_and_sends_them(run: Scripted) -> None:
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("7", "t")
        await screen.shows("no answer within 5 s")
        await screen.press("R")
        await screen.shows("Execute", "times", "server", "allow", "differences", "arguments", "lookup runs again")
        await screen.press("0")
        await screen.shows("A call is replayed 1 to 20 times.")
        await screen.press("backspace", "3", "tab")
        await screen.type("other")
        await screen.press("tab")
        await screen.type("shop.order")
        await screen.press("tab")
        await screen.type("maybe")
        await screen.shows("differences must be yes or no.")
        for _ in "maybe":
            await screen.press("backspace")
        await screen.type("yes")
        await screen.press("tab")
        await screen.type('{"item": ')
        await screen.shows("The arguments are not JSON")
        await screen.press("enter")
        assert not run.sent("replay_calls"), "a form with a fault sends nothing"
        await screen.type('"soap"}')
        await screen.shows("lookup runs again")
        await screen.press("enter")
        await aeventually(lambda: run.sent("replay_calls"))
        (sent,) = run.sent("replay_calls")
        assert isinstance(sent, data_changes.ReplayCalls)
        assert (sent.times, sent.server, sent.allow) == (3, "other", ("shop.order",))
        assert (sent.despite_differences, sent.edit) == (True, {"item": "soap"})


async def test_form_of_a_replay_has_the_recorded_arguments_of_its_page(run: Scripted) -> None:
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("7", "t", "enter")
        await screen.shows("calls of this session")
        await screen.press("R")
        await screen.shows("Execute", '{"item": ')
        await screen.press("enter")
        await aeventually(lambda: run.sent("replay_calls"))
        assert [sent.edit for sent in run.sent("replay_calls")] == [None], "unchanged arguments are not edited"


async def test_form_shows_a_long_preview_whole_and_says_if_it_is_cut(run: Scripted) -> None:
    words = [f"word{number}" for number in range(90)]
    run.effects["replay_calls"] = Effect(changes=(" ".join(words),))
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("7", "t", "R")
        await screen.shows("word0 ", "word45 ", "word89", "enter replay")
    async with opened(run.state_dir, (120, 16)) as screen:
        await screen.press("7", "t", "R")
        await screen.shows("word0 ", "…", "enter replay")
        assert "word89" not in screen.text


@pytest.mark.parametrize(("key", "command"), [("plus", "keep_replays"), ("x", "exclude_replayed")])
async def test_record_of_a_replay_is_kept_or_excluded_by_a_key(run: Scripted, key: str, command: str) -> None:
    run.effects[command] = Effect(changes=(f"what {command} does",))
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("7", "V")
        await screen.shows("flaky 1 of 2")
        await screen.press(key)
        await aeventually(lambda: run.sent(command))
        (sent,) = run.sent(command)
        assert isinstance(sent, data_changes.KeepReplays | data_changes.ExcludeReplayed)
        (id,) = sent.ids
        assert "~" in id
