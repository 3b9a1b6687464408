"""A run that is struck everywhere, once, finishes its job and its books agree. `make chaos` has longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.toolbox.fresh_session_retry import FRESH
from tests.chaos.chaos_run import survive
from tests.chaos.fault_schedule import schedule, steps_of
from tests.chaos.faults import REQUIRED
from tests.chaos.verification import unknown_calls


@pytest.mark.slow
# Three minutes where nobody else works; processes that start torch take their time where somebody does.
@pytest.mark.timeout(1800)
def test_a_run_survives_every_death_and_its_books_agree(tmp_path: Path) -> None:
    result = survive(tmp_path, seed=0, minutes=3)
    assert not result.problems, result.report()


def test_only_what_was_asked_for_is_carried_out_and_again_only_what_failed() -> None:
    calls = {status: {"status": status} for status in ("ok", "tool_error", "refused", "timeout", "lost", "cancelled")}
    carried_out = [*calls, "nobody's", "nobody's~fresh", *(f"{call}{FRESH}" for call in calls)]
    unknown = unknown_calls([{"call": call} for call in carried_out], calls)
    assert list(unknown) == ["nobody's", "nobody's~fresh", "ok~fresh", "tool_error~fresh", "refused~fresh"]


def test_a_storm_is_the_same_again_and_leaves_nothing_out() -> None:
    due = schedule(7, 30)
    assert due == schedule(7, 30)
    assert due != schedule(8, 30)
    assert {one.name for one in due[: len(REQUIRED)]} == REQUIRED.keys() == {one.name for one in schedule(7, 0)}
    assert len(due) > 5 * len(schedule(7, 0))
    assert [one.at_step for one in due] == sorted(one.at_step for one in due)
    assert steps_of(due) > due[-1].at_step
