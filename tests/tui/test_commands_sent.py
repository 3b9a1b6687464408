"""Commands from the console: their questions, their requests, and their targets."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from textual import events

from agentrl.errors import ConflictError
from agentrl.formatting.amounts import moment
from agentrl.protocol import control_commands, data_changes, rows, tool_commands
from agentrl.protocol.effects import Effect
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Permission
from tests.cli.scripted import DESTRUCTIVE, DISRUPTIVE, Scripted
from tests.tui.conftest import Screen, opened, populate
from tests.tui.steward_answers import RECORD, answers
from tests.waiting import aeventually
from tui.console_interface import Settings

REVERSIBLE = Effect(starts=("web-3",))


async def selected(screen: Screen, unit: str) -> None:
    await screen.press("2")
    await screen.shows(unit)
    table = screen.app.view.query("Table").first()
    assert table.model.select(unit)  # type: ignore[attr-defined]


async def test_reversible_command_runs_without_a_question_and_u_undoes_it(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = REVERSIBLE
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("plus")
        await screen.shows("✓ scale web to 4: done", "u takes it back")
        assert coordinator.sent("scale") == [control_commands.Scale("web", to=4, seen=3)]
        await screen.press("u")
        await aeventually(lambda: len(coordinator.sent("scale")) == 2)
        assert coordinator.sent("scale")[1] == control_commands.Scale("web", to=3, seen=4)
        await screen.shows("✓ scale web to 3: done")


async def test_what_an_engine_generated_since_its_last_canary_is_excluded_by_one_key(coordinator: Scripted) -> None:
    populate(coordinator)
    passed = round(time.time()) - 60.0
    row = rows.UnitRow(
        "engine-0", "engine", "engine", rows.UnitState.READY, incarnation=4, metrics={"canary_at": passed, "lag": 2.0}
    )
    coordinator.rows["unit/engine-0"] = row
    note = "only those that engine-0.4 generated since it passed its last canary, of version 7 at 12:00:00"
    coordinator.effects["exclude_records"] = Effect(loses=("1 group would have too few records",), notes=(note,))
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("x")
        await screen.shows("web-1 is no engine that has run, so it has no canary.")
        await selected(screen, "engine-0")
        await screen.press("x")
        await screen.shows("Exclude what engine-0.4 generated since its last canary from training")
        await screen.type("bad")
        await screen.press("enter")
        await screen.shows("1 group would have too few records", "only those that engine-0.4 generated")
        assert not coordinator.sent("exclude_records")
        await screen.type("demo")
        await screen.press("enter")
        wanted = data_changes.ExcludeRecords(made_by="engine-0.4", since_canary=True, note="bad")
        await aeventually(lambda: coordinator.sent("exclude_records") == [wanted])
        await selected(screen, "engine-0")
        await screen.press("enter")
        await screen.shows(f"passed at {moment(passed)}", "lag  2")


async def test_undo_is_refused_after_another_person_has_scaled(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = REVERSIBLE

    def refuse(args: Args) -> Any:
        raise ConflictError("web was scaled to 9 by ben@far (you saw 4); nothing was changed.")

    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("plus")
        await screen.shows("✓ scale web to 4: done", "u takes it back")
        coordinator.answers["scale"] = refuse
        await screen.press("u")
        await screen.shows("✖ scale web to 3: web was scaled to 9 by ben@far (you saw 4); nothing was changed.")
        assert [args for name, args, _ in coordinator.received if name == "scale"][-1] == control_commands.Scale(
            "web", to=3, seen=4
        )


async def test_command_that_ends_units_shows_their_number_in_its_question(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = DISRUPTIVE
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("r")
        await screen.shows("restart web-1.7?", "1 unit finishes its work and ends: web-1", "web: 3 ready now, 2 then")
        await screen.press("escape")
        await screen.shows("nothing was done")
        assert not coordinator.sent("restart")
        await screen.press("r")
        await screen.shows("restart web-1.7?")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("restart") == [control_commands.Restart("web-1", 7)])


@pytest.mark.parametrize(
    ("key", "sent", "offered", "reverse"),
    [
        ("minus", "scale web to 2?", "u scale web to 3 (", control_commands.Scale("web", to=3, seen=2)),
        (
            "d",
            "drain web-1.7?",
            "u work on, web-1.7 (",
            control_commands.DrainUnits("web-1", incarnation=7, cancel=True),
        ),
        ("s", "stop web-1.7?", "u start web-1 again (", control_commands.Restart("web-1")),
    ],
)
async def test_command_that_ended_units_offers_its_reverse_by_name(
    coordinator: Scripted, key: str, sent: str, offered: str, reverse: Args
) -> None:
    populate(coordinator)
    coordinator.effects[{"minus": "scale", "d": "drain", "s": "stop"}[key]] = DISRUPTIVE
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press(key)
        await screen.shows(sent)
        await screen.press("enter")
        await screen.shows("done", offered)
        await screen.press("J", "3")
        await screen.shows("incident", offered)
        coordinator.effects.clear()
        await screen.press("u")
        await aeventually(lambda: reverse in [args for _, args, preview in coordinator.received if not preview])


async def test_typed_dry_run_shows_the_effect_and_sends_nothing(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["stop"] = DISRUPTIVE
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.command("stop web-1 --dry-run")
        await screen.shows("stop web-1.7: Would do (disruptive):")
        assert not coordinator.sent("stop")


async def test_command_without_effect_offers_no_undo(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = Effect()
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("minus")
        await screen.shows("✓ scale web to 2: done")
        await screen.press("u")
        await screen.shows("There is nothing to undo.")


async def test_destructive_command_needs_the_run_name(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["stop"] = DESTRUCTIVE
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("s")
        await screen.shows("What is lost stays lost; the rest can be taken back.", "14 records are lost")
        await screen.type("dem")
        await screen.press("enter")
        await screen.shows("Type the run's name, demo")
        assert not coordinator.sent("stop")
        await screen.type("o")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("stop") == [control_commands.Stop("web-1", 7)])


async def test_new_knob_value_is_previewed_before_it_is_set(coordinator: Scripted) -> None:
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
        await aeventually(lambda: coordinator.sent("tune") == [control_commands.Tune("pool.work_s", 3.0, 4)])
        await screen.press("u")
        await aeventually(lambda: coordinator.sent("undo_tune") == [control_commands.UndoTune("pool.work_s", 5)])


async def test_scientific_knob_needs_a_note(coordinator: Scripted) -> None:
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
        await aeventually(lambda: coordinator.sent("tune") == [control_commands.Tune("trainer.rate", 0.2, 1, "try")])


async def test_typed_scientific_change_needs_a_note(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["tune"] = Effect(changes=("0.1 -> 0.2",), scientific=True)
    async with opened(coordinator.state_dir) as screen:
        await screen.command("tune trainer.rate 0.2")
        await screen.shows("It begins a new segment on all curves. Why?")
        await screen.type("because")
        await screen.press("enter")
        await aeventually(
            lambda: coordinator.sent("tune") == [control_commands.Tune("trainer.rate", 0.2, 1, "because")]
        )


async def test_destructive_scientific_change_needs_note_and_run_name(coordinator: Scripted) -> None:
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
        await aeventually(
            lambda: coordinator.sent("tune") == [control_commands.Tune("trainer.rate", 0.2, 1, "because")]
        )


async def test_question_is_shown_again_if_the_effect_became_worse(coordinator: Scripted) -> None:
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


async def test_command_names_the_incarnation_that_was_on_the_screen(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = DISRUPTIVE
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("r")
        await screen.shows("restart web-1.7?")
        row = coordinator.rows["unit/web-1"]
        assert isinstance(row, rows.UnitRow)
        coordinator.publish("unit/web-1", msgspec.structs.replace(row, incarnation=8))
        await aeventually(lambda: screen.app.mirror.unit("web-1").incarnation == 8)  # type: ignore[union-attr]
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("restart") == [control_commands.Restart("web-1", 7)])


async def test_no_command_is_sent_while_the_view_is_stale(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("z")
        screen.app.frame._frozen_at = -1e9
        await screen.press("plus")
        await screen.shows("more than 5 s old")
        assert not [name for name, _, _ in coordinator.received if name == "scale"]


@pytest.mark.parametrize("why", ["read-only", "viewer"])
async def test_viewer_and_read_only_console_get_no_commands(coordinator: Scripted, why: str) -> None:
    populate(coordinator)
    coordinator.permission = Permission.VIEWER if why == "viewer" else Permission.ADMIN
    async with opened(coordinator.state_dir, settings=Settings(read_only=why == "read-only")) as screen:
        await selected(screen, "web-1")
        await screen.shows("logs")
        assert "restart" not in screen.lines[-1]
        await screen.press("r")
        await screen.shows("restart is not possible", why)
        await screen.press("question_mark")
        await screen.shows("Its newest unplanned end.")
        assert "A new life of this unit." not in screen.text
        assert not [name for name, _, _ in coordinator.received if name == "restart"]


async def test_alerts_can_be_acknowledged_silenced_and_repaired(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["restart"] = Effect(starts=("judge-0",))
    async with opened(coordinator.state_dir) as screen:
        await screen.press("4")
        await screen.shows("bad:judge-0")
        await screen.press("a")
        await aeventually(lambda: coordinator.sent("acknowledge") == [control_commands.Acknowledge("bad:judge-0")])
        await screen.press("s")
        await screen.shows("Send nothing about bad:judge-0")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("silence") == [control_commands.Silence("bad:judge-0", 3600.0)])
        await screen.press("c")
        await aeventually(lambda: coordinator.sent("restart") == [control_commands.Restart("judge-0", 6)])


async def test_refusal_of_the_coordinator_is_shown_with_its_hint(coordinator: Scripted) -> None:
    from agentrl.errors import ConflictError

    populate(coordinator)

    def refuse(_: Args) -> object:
        raise ConflictError("web-1.7 was replaced by web-1.8.", hint="Look again.")

    coordinator.answers["drain"] = refuse
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("d")
        await screen.shows("✖ drain web-1.7: web-1.7 was replaced by web-1.8. Look again.")


async def test_alt_key_ends_a_filter_and_sends_no_command(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.effects["scale"] = REVERSIBLE
    async with opened(coordinator.state_dir) as screen:
        await selected(screen, "web-1")
        await screen.press("plus")
        await screen.shows("✓ scale web to 4: done", "u takes it back")
        for key in ("alt+d", "alt+u"):
            await screen.press("slash", "w", key)
            await screen.shows("judge-0", "web-1")
            assert not screen.app.view.filter_text
        await screen.press("alt+d", "alt+2", "down", "d")
        await aeventually(lambda: coordinator.sent("drain") == [control_commands.DrainUnits("web-2", incarnation=7)])
        assert len(coordinator.sent("scale")) == 1, "nothing is undone"


async def test_alt_key_closes_a_page_and_sends_no_command(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("4")
        await screen.shows("bad:judge-0")
        await screen.press("enter")
        await screen.shows("evidence")
        await screen.press("alt+a")
        await screen.shows("bad:judge-1")
        await screen.press("down", "a")
        await aeventually(lambda: coordinator.sent("acknowledge") == [control_commands.Acknowledge("bad:judge-1")])


async def test_alt_key_closes_a_dialog_and_is_the_next_key_or_moves_in_its_text(coordinator: Scripted) -> None:
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
        await screen.shows("web-1")


async def test_dialog_sends_one_answer_for_several_keys(coordinator: Scripted) -> None:
    """A key after the answer must not reach the dialog, which ended the console before."""
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        for opens in ("question_mark", "colon"):
            await screen.press(opens)
            for _ in range(3):
                screen.app.screen.post_message(events.Key("escape", None))
            await aeventually(lambda: len(screen.app.screen_stack) == 1)
        await screen.press("2")
        await screen.shows("web-1")


async def test_alert_that_ended_before_it_fired_stays_in_the_list(coordinator: Scripted) -> None:
    populate(coordinator)
    fires = next(row for row in coordinator.rows.values() if isinstance(row, rows.AlertRow))
    gone = {"id": "slow:web", "sentence": "web is slow.", "state": rows.AlertState.RESOLVED, "passed": True}
    coordinator.rows["alert/slow:web"] = msgspec.structs.replace(fires, **gone)
    over = {"id": "old:web", "sentence": "web was old.", "state": rows.AlertState.RESOLVED}
    coordinator.rows["alert/old:web"] = msgspec.structs.replace(fires, **over)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("4")
        await screen.shows("went away", "web is slow.")
        assert "web was old." not in screen.text, "a resolved alert is shown with t only"


async def test_way_from_tool_servers_to_the_calls_of_a_session_and_its_release(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    coordinator.effects["release_session"] = DESTRUCTIVE
    coordinator.effects["restart_tool"] = Effect(starts=("toolbox-0.1/shop-1",), drains=("toolbox-0.1/shop-1",))
    async with opened(coordinator.state_dir) as screen:
        await screen.press("T")
        await screen.shows("breaker open", "812", "it took longer than")
        await screen.press("G", "enter")
        await screen.shows("shop: 2 tools", "Look up a price.")
        await screen.press("enter")
        await screen.shows("shop-1", "94%", RECORD[:24], "  └")
        await screen.press("r")
        await screen.shows("restart toolbox-0.1/shop-1?")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("restart_tool"))
        assert coordinator.sent("restart_tool") == [tool_commands.RestartTool(sandbox="toolbox-0.1/shop-1")]
        await screen.press("enter")
        await screen.shows("1 call")
        listed = [args for name, args, _ in coordinator.received if name == "list_calls"]
        assert listed[-1].filter == f'session="{RECORD}" and server="shop" and tool="lookup"'
        await screen.press("escape", "escape")
        await screen.shows("shop: 2 tools")
        await screen.press("l")
        await screen.shows("shop-1  listening")
