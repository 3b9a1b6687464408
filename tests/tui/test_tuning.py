"""The page of knobs: changes of a knob, and previews of another bound before it is changed."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from textual import events
from textual.widgets import Input

from agentrl.errors import RefusedError
from agentrl.protocol import control_commands, rows
from agentrl.protocol.data_commands import DurationShare, StalenessReport
from agentrl.protocol.effects import Effect
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.console_interface import Settings
from tui.model.staleness_histogram import histogram
from tui.model.styled_text import as_ascii, width_of

REPORT = StalenessReport(bound=2, version=9, ready={0: 8, 1: 4, 2: 2, 4: 1}, under_way={0: 3, 3: 1})
COUNTS = st.dictionaries(st.integers(0, 60), st.integers(1, 10_000), max_size=12)


@example(ready={}, flying={}, bound=0, mark=17, width=62)
@given(COUNTS, COUNTS, st.integers(0, 40), st.integers(0, 40), st.integers(60, 300))
def test_every_record_is_drawn_and_counted_once(
    ready: dict[int, int], flying: dict[int, int], bound: int, mark: int, width: int
) -> None:
    report = StalenessReport(bound=bound, version=99, ready=ready, under_way=flying)
    lines = histogram(report, mark, width)
    for line in lines:
        assert width_of(line) <= width
        assert as_ascii("".join(part.text for part in line)).isascii()
    numbers = next(line for line in lines if line[0].text.startswith("ready"))
    assert sum(int(part.text) for part in numbers[1:] if part.text.strip().isdecimal()) == sum(ready.values())


async def test_too_old_records_are_counted_by_duration(coordinator: Scripted) -> None:
    with_a_bound(coordinator)
    hit = (DurationShare(0.1, 0.4, 50, 0), DurationShare(0.4, 2.0, 50, 10), DurationShare(2.0, 9.5, 50, 25))
    coordinator.answers["staleness"] = lambda _: msgspec.structs.replace(REPORT, dropped=hit)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("5", "b")
        await screen.shows("too old to train", "≤0.4 s 0% · ≤2 s 20% · ≤9.5")
        whole(screen, 80, 24)
        coordinator.answers["staleness"] = lambda _: REPORT
        await aeventually(lambda: "too old to train" not in screen.text)


def with_a_bound(coordinator: Scripted) -> None:
    populate(coordinator)
    row = rows.KnobRow(
        "bound", "int", 2, "How far behind.", minimum=0.0, boundary="next version", owner="trainer",
        value=2, revision=3, changed_at=time.time(), changed_by="bob@far",
    )  # fmt: skip
    coordinator.rows["knob/bound"] = row
    coordinator.answers["staleness"] = lambda _: REPORT

    def history(args: Any) -> list[rows.AuditRow]:
        return [
            rows.AuditRow(n, 1e9 + n, "bob@far", "tune", f"{args.name}: {n} -> {n + 1}", "", f"why {n}")
            for n in range(12)
        ]

    coordinator.answers["knob_history"] = history


async def test_mark_previews_another_bound_and_enter_opens_its_question(coordinator: Scripted) -> None:
    with_a_bound(coordinator)
    lost = "3 of 15 ready records would be outside (1 already) and dropped; 1 under way would come too late"
    coordinator.effects["tune"] = Effect(changes=(lost, "bound: 2 -> 1, from the next version on"))
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("5", "b")
        await screen.shows("under way", "try another bound")
        ready = next(line for line in screen.lines if line.strip().startswith("ready"))
        assert ready.split() == ["ready", "8", "4", "2│", "1"]
        await screen.press("left")
        await screen.shows("at 1: 3 of 15 ready records would be outside (1 already) and dropped", "bound: 2 -> 1")
        assert screen.text.count("3 of 15") == 1, "one count from one place"
        whole(screen, 80, 24)
        await screen.press("right")
        await screen.shows("try another bound")
        assert not coordinator.sent("tune")
        await screen.press("left", "enter")
        await screen.shows("new value", "3 of 15 ready records")
        await screen.press("enter")
        await aeventually(lambda: coordinator.sent("tune") == [control_commands.Tune("bound", 1, 3)])


async def test_consent_to_a_tighter_bound_states_what_can_be_undone(
    coordinator: Scripted,
) -> None:
    with_a_bound(coordinator)
    coordinator.effects["tune"] = Effect(loses=("3 of 15 ready records would be outside and dropped",))
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("5", "b")
        await screen.shows("try another bound")
        await screen.press("left", "enter")
        await screen.shows("new value")
        await screen.press("enter")
        await screen.shows("What is lost stays lost; the rest can be taken back.", "3 of 15 ready records")
        assert "cannot be taken back" not in screen.text
        whole(screen, 80, 24)


async def test_histogram_and_preview_are_queried_together_with_their_age(coordinator: Scripted) -> None:
    """While the mark stays and records come and go, histogram and preview must show the same moment."""
    with_a_bound(coordinator)
    coordinator.effects["tune"] = Effect(changes=("2 of 15 ready records would be outside",))
    async with opened(coordinator.state_dir, (100, 30)) as screen:
        await screen.press("5", "b")
        await screen.shows("try another bound", "counted 0 s ago")
        await screen.press("left")
        await screen.shows("at 1: 2 of 15 ready records")
        coordinator.answers["staleness"] = lambda _: msgspec.structs.replace(REPORT, ready={0: 1, 2: 5})
        coordinator.effects["tune"] = Effect(changes=("5 of 6 ready records would be outside",))
        await screen.shows("at 1: 5 of 6 ready records")


async def test_fast_typing_into_the_value_field_loses_no_key(coordinator: Scripted) -> None:
    """Editing keys take effect in order, so a backspace deletes the letter before it."""
    with_a_bound(coordinator)
    coordinator.effects["tune"] = Effect(changes=("the bound goes from 2 to 13",))
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("5", "b")
        await screen.shows("try another bound")
        await screen.press("left", "enter")
        (field, _) = screen.app.screen.query(Input)
        await aeventually(lambda: field.has_focus)
        for key in ("backspace", "3", "home", "1", "enter"):
            screen.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await aeventually(lambda: coordinator.sent("tune") == [control_commands.Tune("bound", 13, 3)])


async def test_viewer_gets_the_knob_page_in_place_of_the_form(coordinator: Scripted) -> None:
    with_a_bound(coordinator)
    async with opened(coordinator.state_dir, (80, 24), Settings(read_only=True)) as screen:
        await screen.press("5", "b", "enter")
        await screen.shows("changes, the newest first")
        assert len(screen.app.screen_stack) == 1


async def test_other_knobs_have_no_mark(coordinator: Scripted) -> None:
    with_a_bound(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("5", "b")
        await screen.shows("try another bound")
        await screen.press("down", "left")
        await screen.shows("Only the bound has a preview by keys")
        await aeventually(lambda: "under way" not in screen.text)


async def test_unanswered_bound_shows_the_reason(coordinator: Scripted) -> None:
    with_a_bound(coordinator)

    def nobody(_: Any) -> StalenessReport:
        raise RefusedError("The run has no steward.")

    coordinator.answers["staleness"] = nobody
    async with opened(coordinator.state_dir) as screen:
        await screen.press("5", "b")
        await aeventually(lambda: coordinator.sent("staleness"))
        await aeventually(lambda: not screen.app.view.is_querying("ages"))
        await screen.press("left")
        await screen.shows("What another bound would do is not known: The run has no steward.")


async def test_changes_of_a_knob_are_shown_below_the_table_and_on_its_page(coordinator: Scripted) -> None:
    with_a_bound(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("5", "b", "down")
        await screen.shows("pool.work_s: 11 -> 12 (why 11)", "bob@far")
        await screen.press("h")
        await screen.shows("pool.work_s: 0 -> 1", "changes, the newest first")
        await screen.press("U")
        await aeventually(lambda: coordinator.sent("undo_tune") == [control_commands.UndoTune("pool.work_s", 4)])


async def test_value_of_an_ended_owner_is_not_shown_as_pending(coordinator: Scripted) -> None:
    """The owner of the knob has ended, so there is no next version."""
    coordinator.rows["knob/rate"] = rows.KnobRow(
        "rate", "float", 0.1, boundary="next version", owner="trainer", value=0.2, revision=2, in_force=0.1,
        changed_at=1.0,
    )  # fmt: skip
    trainer = rows.GroupRow("trainer", "trainer", 1, ready=1)
    coordinator.rows["group/trainer"] = trainer
    async with opened(coordinator.state_dir, (140, 30)) as screen:
        await screen.press("5")
        await screen.shows("next version", "still 0.1")
        ended = msgspec.structs.replace(trainer, ready=0, other={rows.COMPLETED: 1})
        coordinator.publish("group/trainer", ended)
        await screen.shows("if run again", "trainer is done: what is set now holds if it is run again.")
        await aeventually(lambda: "next version" not in screen.text)
        await screen.press("h")
        await screen.shows("takes effect  if run again")
