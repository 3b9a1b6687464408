"""Changing something from the console: what is asked, what is sent, and at what it is aimed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual import events

from agentrl.errors import ConflictError
from agentrl.protocol import commands, rows
from agentrl.protocol.effects import Effect
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Permission
from tests.cli.scripted import DESTRUCTIVE, DISRUPTIVE, Scripted
from tests.tui.conftest import Screen, opened, populate
from tests.waiting import aeventually
from tui.app import Settings

REVERSIBLE = Effect(starts=("web-3",))


async def aimed_at(screen: Screen, unit: str) -> None:
    await screen.press("2")
    await screen.shows(unit)
    table = screen.app.view.query("Table").first()
    assert table.model.aim(unit)  # type: ignore[attr-defined]


async def test_what_can_be_taken_back_is_done_at_once_and_taken_back_by_u(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = REVERSIBLE
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("plus")
        await screen.shows("✓ scale web to 4: done", "u takes it back")
        assert coordinator.sent("scale") == [commands.Scale("web", to=4, seen=3)]
        await screen.press("u")
        await aeventually(lambda: len(coordinator.sent("scale")) == 2)
        assert coordinator.sent("scale")[1] == commands.Scale("web", to=3, seen=4)
        await screen.shows("✓ scale web to 3: done")


async def test_what_somebody_else_has_scaled_since_is_not_taken_back(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = REVERSIBLE

    def refuse(args: Args) -> Any:
        raise ConflictError("web was scaled to 9 by ben@far (you saw 4); nothing was changed.")

    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("plus")
        await screen.shows("✓ scale web to 4: done", "u takes it back")
        coordinator.answers["scale"] = refuse
        await screen.press("u")
        await screen.shows("✖ scale web to 3: web was scaled to 9 by ben@far (you saw 4); nothing was changed.")
        assert [args for name, args, _ in coordinator.received if name == "scale"][-1] == commands.Scale(
            "web", to=3, seen=4
        )


async def test_what_ends_units_is_asked_with_its_numbers(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = DISRUPTIVE
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("r")
        await screen.shows("restart web-1.7?", "1 unit finishes its work and ends: web-1", "web: 3 ready now, 2 then")
        await screen.press("escape")
        await screen.shows("nothing was done")
        assert not coordinator.sent("restart")
        await screen.press("r")
        await screen.shows("restart web-1.7?")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("restart") == [commands.Restart("web-1", 7)])


@pytest.mark.parametrize(
    ("key", "asked", "offered", "reverse"),
    [
        ("minus", "scale web to 2?", "u scale web to 3 (", commands.Scale("web", to=3, seen=2)),
        ("d", "drain web-1.7?", "u work on, web-1.7 (", commands.DrainUnits("web-1", incarnation=7, cancel=True)),
        ("s", "stop web-1.7?", "u start web-1 again (", commands.Restart("web-1")),
    ],
)
async def test_what_ended_units_has_its_reverse_which_is_called_by_what_it_does(
    coordinator: Scripted, key: str, asked: str, offered: str, reverse: Args
) -> None:
    populate(coordinator)
    coordinator.effects[{"minus": "scale", "d": "drain", "s": "stop"}[key]] = DISRUPTIVE
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press(key)
        await screen.shows(asked)
        await screen.press("enter")
        await screen.shows("done", offered)
        await screen.press("J", "3")
        await screen.shows("incident", offered)
        coordinator.effects.clear()
        await screen.press("u")
        await aeventually(lambda: reverse in [args for _, args, preview in coordinator.received if not preview])


async def test_what_changed_nothing_has_nothing_to_take_back(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = Effect()
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("minus")
        await screen.shows("✓ scale web to 2: done")
        await screen.press("u")
        await screen.shows("There is nothing to take back.")


async def test_what_is_lost_for_good_wants_the_name_of_the_run(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["stop"] = DESTRUCTIVE
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("s")
        await screen.shows("What is lost stays lost; the rest can be taken back.", "14 records are lost")
        await screen.type("dem")
        await screen.press("enter")
        await screen.shows("Type the run's name, demo")
        assert not coordinator.sent("stop")
        await screen.type("o")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("stop") == [commands.Stop("web-1", 7)])


async def test_a_knob_is_turned_after_a_look_at_what_it_would_do(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["tune"] = Effect(changes=("14 ready records are void",))
    async with opened(coordinator.state_dir) as screen:
        await screen.press("5")
        await screen.shows("pool.work_s")
        await screen.press("enter")
        await screen.shows("Type a value: 0 to 9")
        await screen.type("99")
        await screen.shows("must be a number from 0 to 9")
        await screen.press("backspace", "backspace", "3")
        await screen.shows("reversible: 14 ready records are void")
        assert not coordinator.sent("tune")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("tune") == [commands.Tune("pool.work_s", 3.0, 4)])
        await screen.press("u")
        await aeventually(lambda: coordinator.sent("undo_tune") == [commands.UndoTune("pool.work_s", 5)])


async def test_a_scientific_knob_wants_a_note(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("5", "down", "enter")
        await screen.shows("trainer.rate", "new segment")
        await screen.type("0.2")
        await screen.shows("A scientific knob wants a note.")
        await screen.press("enter")
        assert not coordinator.sent("tune")
        await screen.press("tab")
        await screen.type("try")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("tune") == [commands.Tune("trainer.rate", 0.2, 1, "try")])


async def test_a_scientific_change_that_was_typed_asks_for_its_note(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["tune"] = Effect(changes=("0.1 -> 0.2",), scientific=True)
    async with opened(coordinator.state_dir) as screen:
        await screen.command("tune trainer.rate 0.2")
        await screen.shows("It begins a new segment on all curves. Why?")
        await screen.type("because")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("tune") == [commands.Tune("trainer.rate", 0.2, 1, "because")])


async def test_what_is_lost_by_a_scientific_change_wants_the_name_of_the_run_too(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["tune"] = Effect(loses=("14 records are lost",), scientific=True)
    async with opened(coordinator.state_dir) as screen:
        await screen.command("tune trainer.rate 0.2")
        await screen.shows("Why?", "14 records are lost")
        await screen.type("because")
        await screen.press("enter")
        await screen.shows("What is lost stays lost")
        assert not coordinator.sent("tune")
        await screen.type("demo")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("tune") == [commands.Tune("trainer.rate", 0.2, 1, "because")])


async def test_who_agreed_before_it_became_worse_is_asked_again(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["tune"] = Effect(changes=("0.1 -> 0.2",), scientific=True)
    async with opened(coordinator.state_dir) as screen:
        await screen.command("tune trainer.rate 0.2")
        await screen.shows("Why?")
        coordinator.effects["tune"] = Effect(loses=("14 records are lost",), scientific=True)
        await screen.type("because")
        await screen.press("enter")
        await screen.shows("What is lost stays lost", "14 records are lost")
        await screen.press("escape")
        await screen.shows("nothing was done")
        assert not coordinator.sent("tune")


async def test_the_life_that_was_seen_is_meant_even_if_another_one_came_meanwhile(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = DISRUPTIVE
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("r")
        await screen.shows("restart web-1.7?")
        row = coordinator.rows["unit/web-1"]
        assert isinstance(row, rows.UnitRow)
        coordinator.publish("unit/web-1", msgspec.structs.replace(row, incarnation=8))
        await aeventually(lambda: screen.app.mirror.unit("web-1").incarnation == 8)  # type: ignore[union-attr]
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("restart") == [commands.Restart("web-1", 7)])


async def test_nothing_is_sent_while_the_view_is_old(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("z")
        screen.app._frozen_at = -1e9
        await screen.press("plus")
        await screen.shows("older than 5 s")
        assert not [name for name, _, _ in coordinator.received if name == "scale"]


@pytest.mark.parametrize("why", ["read-only", "viewer"])
async def test_who_may_not_change_anything_is_not_offered_it(coordinator: Scripted, why: str) -> None:
    populate(coordinator)
    coordinator.permission = Permission.VIEWER if why == "viewer" else Permission.ADMIN
    async with opened(coordinator.state_dir, settings=Settings(read_only=why == "read-only")) as screen:
        await aimed_at(screen, "web-1")
        await screen.shows("logs")
        assert "restart" not in screen.lines[-1]
        await screen.press("r")
        await screen.shows("restart is not possible", why)
        await screen.press("question_mark")
        await screen.shows("Its newest unplanned end.")
        assert "A new life of this unit." not in screen.text
        assert not [name for name, _, _ in coordinator.received if name == "restart"]


async def test_alerts_are_acknowledged_silenced_and_cured(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = Effect(starts=("judge-0",))
    async with opened(coordinator.state_dir) as screen:
        await screen.press("4")
        await screen.shows("bad:judge-0")
        await screen.press("a")
        await aeventually(lambda: coordinator.sent("acknowledge") == [commands.Acknowledge("bad:judge-0")])
        await screen.press("s")
        await screen.shows("Send nothing about bad:judge-0")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("silence") == [commands.Silence("bad:judge-0", 3600.0)])
        await screen.press("c")
        await aeventually(lambda: coordinator.sent("restart") == [commands.Restart("judge-0", 6)])


async def test_what_the_coordinator_refuses_is_told_with_its_cure(coordinator: Scripted) -> None:
    from agentrl.errors import ConflictError

    populate(coordinator)

    def refuse(_: Args) -> object:
        raise ConflictError("web-1.7 was replaced by web-1.8.", hint="Look again.")

    coordinator.answers["drain"] = refuse
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("d")
        await screen.shows("✖ drain web-1.7: web-1.7 was replaced by web-1.8. Look again.")


async def test_a_key_with_alt_leaves_a_filter_and_does_not_act_on_the_row_beneath(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = REVERSIBLE
    async with opened(coordinator.state_dir) as screen:
        await aimed_at(screen, "web-1")
        await screen.press("plus")
        await screen.shows("✓ scale web to 4: done", "u takes it back")
        for key in ("alt+d", "alt+u"):
            await screen.press("slash", "w", key)
            await screen.shows("judge-0", "web-1")
            assert not screen.app.view.filter_text
        await screen.press("alt+d", "alt+2", "down", "d")
        await aeventually(lambda: coordinator.sent("drain") == [commands.DrainUnits("web-2", incarnation=7)])
        assert len(coordinator.sent("scale")) == 1, "nothing is taken back"


async def test_a_key_with_alt_leaves_a_page_and_does_not_act_on_the_row_beneath(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("4")
        await screen.shows("bad:judge-0")
        await screen.press("enter")
        await screen.shows("evidence")
        await screen.press("alt+a")
        await screen.shows("bad:judge-1")
        await screen.press("down", "a")
        await aeventually(lambda: coordinator.sent("acknowledge") == [commands.Acknowledge("bad:judge-1")])


async def test_a_key_with_alt_leaves_a_question_or_moves_in_what_is_typed(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("colon")
        await screen.type("drain here")
        await screen.press("alt+b")
        await screen.type("web ")
        await screen.press("alt+f")
        await screen.type("!")
        await screen.shows("drain web here!")
        await screen.press("alt+2")
        await aeventually(lambda: len(screen.app.screen_stack) == 1)
        await screen.shows("Needs you")


async def test_a_question_is_answered_once_however_fast_one_types(coordinator: Scripted) -> None:
    """The key behind the answer used to find the question still there, and to end the console."""
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        for opens in ("question_mark", "colon"):
            await screen.press(opens)
            for _ in range(3):
                screen.app.screen.post_message(events.Key("escape", None))
            await aeventually(lambda: len(screen.app.screen_stack) == 1)
        await screen.press("2")
        await screen.shows("web-1")


async def test_what_went_away_before_it_fired_is_told_to_who_saw_it_coming(coordinator: Scripted) -> None:
    populate(coordinator)
    fires = next(row for row in coordinator.rows.values() if isinstance(row, rows.AlertRow))
    gone = {"id": "slow:web", "sentence": "web is slow.", "state": rows.AlertState.RESOLVED, "passed": True}
    coordinator.rows["alert/slow:web"] = msgspec.structs.replace(fires, **gone)
    over = {"id": "old:web", "sentence": "web was old.", "state": rows.AlertState.RESOLVED}
    coordinator.rows["alert/old:web"] = msgspec.structs.replace(fires, **over)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("4")
        await screen.shows("went away", "web is slow.")
        assert "web was old." not in screen.text, "what fired and ended is shown with t"
