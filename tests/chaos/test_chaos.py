"""Every required fault once: the run finishes its job and passes verification. `make chaos` has longer tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.toolbox.fresh_session_retry import FRESH
from tests.chaos.chaos_run import run_chaos
from tests.chaos.fault_schedule import ranks_of, schedule, steps_of
from tests.chaos.faults import RANKS, required
from tests.chaos.verification import unknown_calls


@pytest.mark.slow
# Three minutes on an idle machine; processes that load torch take longer on a busy one.
@pytest.mark.timeout(1800)
def test_run_survives_every_fault_and_passes_verification(tmp_path: Path) -> None:
    result = run_chaos(tmp_path, seed=0, minutes=3)
    assert not result.problems, result.report()


def test_unknown_calls_and_second_tries_of_successful_calls_are_found() -> None:
    calls = {status: {"status": status} for status in ("ok", "tool_error", "refused", "timeout", "lost", "cancelled")}
    executed = [*calls, "unknown", "unknown~fresh", *(f"{call}{FRESH}" for call in calls)]
    unknown = unknown_calls([{"call": call} for call in executed], calls)
    assert list(unknown) == ["unknown", "unknown~fresh", "ok~fresh", "tool_error~fresh", "refused~fresh"]


def test_schedule_depends_on_the_seed_and_has_all_required_faults() -> None:
    for seed in (6, 7):
        due, wanted = schedule(seed, 30), required(ranks_of(seed))
        assert due == schedule(seed, 30)
        assert due != schedule(seed + 2, 30)
        assert {one.name for one in due[: len(wanted)]} == wanted.keys() == {one.name for one in schedule(seed, 0)}
        assert (RANKS.keys() <= wanted.keys()) == (seed % 2 == 0), "deaths of ranks are required only with two ranks"
        assert len(due) > 5 * len(schedule(seed, 0))
        assert [one.at_step for one in due] == sorted(one.at_step for one in due)
        assert steps_of(due) > due[-1].at_step
