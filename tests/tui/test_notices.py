"""The notice line: every key gets a reaction, and a message belongs to its view."""

from __future__ import annotations

import pytest

from agentrl.errors import ConflictError
from agentrl.protocol import rows
from agentrl.protocol.effects import Effect
from agentrl.protocol.message_base import Args
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.waiting import aeventually
from tui.widgets.lines import Table

NO_BOUND = "This run has no staleness bound."


async def test_unknown_key_is_answered_without_painting_a_row(
    coordinator: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2", "z")
        await screen.shows("web-2", "frozen")
        painted: list[object] = []
        monkeypatch.setattr(Table, "drawing", lambda self, width, height: painted.append(self) or ())
        await screen.press("J")
        await screen.shows("J means nothing here; ? lists the keys.")
        await screen.press("é")
        await screen.shows("é means nothing here")
        await screen.press("f7")
        await screen.shows("f7 means nothing here")
        assert not painted
        monkeypatch.undo()
        await screen.press("down")
        await aeventually(lambda: "means nothing" not in screen.text)


async def test_move_keys_are_unknown_in_a_view_without_cursor(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (100, 60)) as screen:
        await screen.press("down")
        await screen.shows("↓ means nothing here")
        await screen.press("question_mark")
        await screen.shows("everywhere")
        assert "One row up." not in screen.text
        await screen.press("escape", "2", "question_mark")
        await screen.shows("One row up.")


async def test_text_typed_into_a_field_runs_no_action(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2", "slash", "Z", "f7")
        await screen.shows("/Z", "nothing matches the filter")
        assert "means nothing" not in screen.text
        await screen.press("escape", "colon", "J", "f7")
        await aeventually(lambda: len(screen.app.screen_stack) == 2)
        await screen.press("escape")
        await screen.shows("web-2")
        assert "means nothing" not in screen.text


async def test_message_of_a_view_disappears_with_the_view(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        for elsewhere in (["2"], ["enter"]):
            await screen.press("5", "b")
            await screen.shows(NO_BOUND)
            if elsewhere == ["enter"]:
                await screen.press("4", "5", "b", "h")
            else:
                await screen.press(*elsewhere)
            await aeventually(lambda: NO_BOUND not in screen.text)


async def test_result_of_a_command_is_shown_in_every_view(coordinator: Scripted) -> None:
    def refuse(_: Args) -> object:
        raise ConflictError("web-0.7 was replaced.")

    populate(coordinator)
    coordinator.effects["drain"] = Effect(changes=("it works on",))
    coordinator.answers["drain"] = refuse
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2", "end", "d")
        await screen.shows("web-2.7: web-0.7 was replaced.")
        await screen.press("3", "4")
        await screen.shows("alert", "✖ drain web-2.7: web-0.7 was replaced.")


async def test_bound_is_offered_only_in_a_run_that_has_one(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (100, 60)) as screen:
        await screen.press("5")
        await screen.shows("pool.work_s")
        for bound in (False, True):
            if bound:
                coordinator.publish("knob/bound", rows.KnobRow("bound", "int", 4, value=4, revision=1))
                await screen.shows("b bound")
            assert ("b bound" in screen.lines[-1]) is bound
            await screen.press("question_mark")
            await screen.shows("Every change of this knob.")
            assert ("The staleness bound, with" in screen.text) is bound
            await screen.press("escape", "colon")
            await screen.type("boun")
            await screen.shows("boun")
            assert ("The staleness bound, with" in screen.text) is bound
            await screen.press("escape")
