"""A coordinator or host agent that is stopped by a signal, and the leases of units in that time.

Jumps of the wall clock are tested where a clock can be injected: leases and deadlines in tests/supervision, alerts in
tests/control. A pid that belongs to another process now is tested with the host agent.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentrl.protocol.rows import UnitRow
from tests.e2e.running import Run, running
from tests.waiting import eventually

SILENT_S = 4.0
"""The silence after which a unit or a host is given up."""
STOPPED_S = 1.5 * SILENT_S


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for run in running(tmp_path_factory.mktemp("time"), f"t-{uuid.uuid4().hex[:8]}"):
        # A coordinator that never continues has its own test.
        run.config["supervision"]["coordinator_silent_s"] = 60.0
        # A busy machine must not make units suspect here.
        silences = ("suspect_after_s", "dead_after_s", "host_silent_after_s")
        run.config["supervision"] |= dict.fromkeys(silences, SILENT_S)
        run.unit("step", "step_loop", "--every", "0.05", count=3)
        run.sidecar("web", ["sleep", "1000"], count=3, ready={"exec": ["true"], "interval_s": 0.2})
        run.up()
        yield run


@contextmanager
def stopped(run: Run, pid: int) -> Iterator[None]:
    """Runs the body while the process is stopped, and continues the process after a fixed time."""
    began = time.monotonic()
    run.kill(pid, signal.SIGSTOP)
    try:
        yield
        eventually(lambda: time.monotonic() - began > STOPPED_S, within_s=STOPPED_S + 30)
    finally:
        run.kill(pid, signal.SIGCONT)


def lives(units: dict[str, UnitRow]) -> dict[str, tuple[int, int]]:
    return {unit: (row.incarnation, row.pid) for unit, row in units.items()}


def goes_on(run: Run) -> None:
    before = run.unit_row("step-0").progress
    eventually(lambda: run.unit_row("step-0").progress > before + 10, what="its progress")


def moves(run: Run) -> list[tuple[str, float]]:
    """State of every unit with its time, which changes even if the unit was suspect only for a moment."""
    return sorted((row.unit + row.state, row.since_at) for row in run.units().values())


def test_stopped_coordinator_extends_all_leases_when_it_continues(run: Run) -> None:
    goes_on(run)
    before, pid, since = run.units(), run.coordinator_pid(), moves(run)
    with stopped(run, pid):
        assert {row.state for row in before.values()} == {"ready"}
    goes_on(run)
    assert run.coordinator_pid() == pid
    assert lives(run.units()) == lives(before)
    assert moves(run) == since, "no unit was suspected"
    assert run.host().state == "up"
    assert not run.client.events(kinds=("incident",))


def test_unit_that_died_while_the_coordinator_was_stopped_is_replaced_with_its_exit_status(run: Run) -> None:
    before, pid = run.units(), run.coordinator_pid()
    with stopped(run, pid):
        run.kill(before["web-1"].pid)
    row = run.wait_incarnation("web-1", above=before["web-1"].incarnation)
    assert row.last_exit is not None
    assert row.last_exit.signal == signal.SIGKILL
    after = lives(run.units())
    assert after | {"web-1": ()} == lives(before) | {"web-1": ()}


def test_stopped_host_agent_is_continued_and_acts_on_what_died_meanwhile(run: Run) -> None:
    before, pid = run.units(), run.agent_pid()
    run.kill(pid, signal.SIGSTOP)
    run.kill(before["web-2"].pid)
    run.kill(before["step-2"].pid)
    for unit in ("web-2", "step-2"):
        row = run.wait_incarnation(unit, above=before[unit].incarnation)
        assert row.incarnation == before[unit].incarnation + 1
        assert row.last_exit is not None
        assert row.last_exit.signal == signal.SIGKILL
    eventually(lambda: {row.state for row in run.units().values()} == {"ready"})
    after = lives(run.units())
    gone = {"web-2": (), "step-2": ()}
    assert after | gone == lives(before) | gone
    assert run.agent_pid() == pid
    assert all(len(run.lives_of(unit)) == 1 for unit in before)
    incidents = [row.what for row in run.client.events(kinds=("incident",))]
    assert any("host agent" in what and "stopped by a signal" in what for what in incidents), incidents


def test_host_agent_that_is_stopped_again_is_replaced_and_its_units_live_on(run: Run) -> None:
    before, pid = run.units(), run.agent_pid()

    def replaced() -> bool:
        if run.alive(pid):
            run.kill(pid, signal.SIGSTOP)
            return False
        return run.agent_pid() != pid

    eventually(replaced, what="another host agent")
    eventually(lambda: {row.state for row in run.units().values()} == {"ready"})
    assert lives(run.units()) == lives(before)
    assert all(len(run.lives_of(unit)) == 1 for unit in before)
