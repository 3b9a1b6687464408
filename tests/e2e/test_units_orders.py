"""Drain, stop, restart, scale and pause reach the units, and work in progress is finished first."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol.rows import UnitRow
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import eventually

WORKER = [PYTHON, str(Path(__file__).parent / "programs" / "worker.py")]
DEAF = ["sh", "-c", "trap '' TERM; touch $AGENTRL_RUN_DIR/deaf; while :; do sleep 0.1; done"]
GRACE_S = 1.5
"""How long a stop waits for work. A drain has no limit."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for run in running(tmp_path_factory.mktemp("orders"), f"t-{uuid.uuid4().hex[:8]}"):
        graces = {"drain_grace_s": GRACE_S, "term_grace_s": GRACE_S}
        run.sidecar("one", WORKER, speaks=True, **graces)
        run.sidecar("many", WORKER, speaks=True, count=3, **graces)
        # A shell that has just started does not ignore SIGTERM yet.
        run.sidecar("deaf", DEAF, term_grace_s=GRACE_S, ready={"exec": ["test", "-e", "{run_dir}/deaf"]})
        run.unit("forker", "detached_children", count=2)
        run.up()
        yield run


@contextmanager
def at_work(run: Run, unit: str) -> Iterator[UnitRow]:
    """The unit has work in progress, as its row shows."""
    order = Path(run.dir) / f"work-{unit}"
    run.wait_state(unit, "ready")
    order.touch()
    try:
        yield wait_phase(run, unit, "work")
    finally:
        order.unlink(missing_ok=True)


def wait_phase(run: Run, unit: str, phase: str) -> UnitRow:
    def there() -> UnitRow | None:
        row = run.unit_row(unit)
        assert row.phase == phase, f"{unit} is {row.state}, phase {row.phase!r}"
        return row

    return eventually(there, what=f"{unit} in phase {phase!r}")


def gets_on(run: Run, row: UnitRow, steps: int) -> UnitRow:
    """The same incarnation continues its work."""

    def there() -> UnitRow | None:
        now = run.unit_row(row.unit)
        assert now.incarnation == row.incarnation
        return now if now.progress >= row.progress + steps else None

    return eventually(there, what=f"{row.unit} to do {steps} steps more")


def incidents(run: Run) -> int:
    return len(run.client.events(kinds=("incident",), limit=1000))


# ---- drain and stop ----


def test_drain_waits_for_the_work_in_progress_without_a_limit(run: Run) -> None:
    with at_work(run, "one-0") as before:
        drain = run.start("drain", "one-0", "--yes", "--json")
        draining = run.wait_state("one-0", "draining")
        assert draining.reason.startswith("drained by ")
        # Twice the grace of a stop: a step takes at least 0.02 s.
        gets_on(run, draining, steps=int(2 * GRACE_S / 0.02))
        assert run.unit_row("one-0").state == "draining"
        assert drain.poll() is None, "the command waits for the end"
    out, err = drain.communicate(timeout=60)
    assert drain.returncode == 0, f"{out} {err}"
    row = run.unit_row("one-0")
    assert (row.state, row.incarnation) == ("stopped", before.incarnation)
    assert row.last_exit is not None
    assert row.last_exit.code == 0
    assert run.lives_of("one-0") == set()
    run.cli("restart", "one-0")


def test_cancelled_drain_keeps_the_incarnation(run: Run) -> None:
    with at_work(run, "one-0") as before:
        drain = run.start("drain", "one-0", "--yes", "--json")
        run.wait_state("one-0", "draining")
        run.cli("drain", "one-0", "--cancel")
        row = run.wait_state("one-0", "ready")
        assert row.reason == "drain cancelled"
        gets_on(run, row, steps=5)
    # The command that waits for the drain gets the message that it was cancelled.
    out, err = drain.communicate(timeout=60)
    assert drain.returncode == ExitCode.CONFLICT, f"{out} {err}"
    after = run.wait_state("one-0", "ready")
    assert (after.incarnation, after.pid) == (before.incarnation, before.pid)
    with at_work(run, "one-0") as again:
        assert again.incarnation == before.incarnation, "it takes new work"


def test_stop_ends_work_that_outlasts_its_grace_and_counts_no_death(run: Run) -> None:
    known = incidents(run)
    with at_work(run, "one-0") as before:
        run.cli("stop", "one-0")
        row = run.unit_row("one-0")
        assert (row.state, row.incarnation, row.restarts) == ("stopped", before.incarnation, before.restarts)
        assert row.reason.startswith("stopped by ")
        assert not row.desired
        assert run.lives_of("one-0") == set()
    assert incidents(run) == known
    run.cli("restart", "one-0")
    assert run.unit_row("one-0").incarnation == before.incarnation + 1


def test_stop_now_kills_at_once(run: Run) -> None:
    with at_work(run, "one-0"):
        run.cli("stop", "one-0", "--now", "--yes")
        row = run.unit_row("one-0")
        assert row.state == "stopped"
        assert row.last_exit is not None
        assert row.last_exit.signal == signal.SIGKILL
    run.cli("restart", "one-0")


def test_unit_that_ignores_sigterm_is_killed_after_its_grace(run: Run) -> None:
    before = run.wait_state("deaf-0", "ready")
    run.cli("restart", "deaf-0")
    after = run.unit_row("deaf-0")
    assert (after.incarnation, after.restarts) == (before.incarnation + 1, before.restarts)
    assert after.last_exit is not None
    assert after.last_exit.signal == signal.SIGKILL
    assert run.lives_of("deaf-0") == {f"deaf-0.{after.incarnation}"}


# ---- restart ----


def test_restart_lets_the_work_finish_and_is_no_death(run: Run) -> None:
    known = incidents(run)
    before = run.wait_state("one-0", "ready")
    run.cli("restart", "one-0")
    after = run.unit_row("one-0")
    assert (after.incarnation, after.restarts) == (before.incarnation + 1, before.restarts)
    assert after.last_exit is not None
    assert after.last_exit.code == 0
    with at_work(run, "one-0") as busy:
        run.cli("restart", "one-0", "--now", "--yes")
        killed = run.unit_row("one-0")
        assert killed.incarnation == busy.incarnation + 1
        assert killed.last_exit is not None
        assert killed.last_exit.signal == signal.SIGKILL
    assert incidents(run) == known


def test_restart_of_an_ended_incarnation_is_refused(run: Run) -> None:
    if run.wait_state("one-0", "ready").incarnation == 1:
        run.cli("restart", "one-0")
    row = run.wait_state("one-0", "ready")
    refused = run.raw("restart", f"one-0.{row.incarnation - 1}")
    assert refused.returncode == ExitCode.CONFLICT
    assert run.unit_row("one-0").incarnation == row.incarnation


def test_group_is_restarted_as_a_whole(run: Run) -> None:
    before = run.incarnations()
    run.cli("restart", "many")
    after = run.units()
    for slot in range(3):
        row = after[f"many-{slot}"]
        assert (row.state, row.incarnation) == ("ready", before[row.unit] + 1)
    assert after["one-0"].incarnation == before["one-0"]


# ---- scale ----


def test_scale_down_stops_idle_units_first(run: Run) -> None:
    with at_work(run, "many-0") as one, at_work(run, "many-2") as other:
        older, newer = sorted((one, other), key=lambda row: row.ready_at)
        assert run.cli("scale", "many", "-1", "--dry-run")["effect"]["drains"] == ["many-1"]
        run.cli("scale", "many", "-1")
        assert {u for u, row in run.units().items() if row.group == "many" and row.desired} == {"many-0", "many-2"}
        gets_on(run, newer, steps=5)
        # Both are busy now, so the newer one is stopped.
        assert run.cli("scale", "many", "1", "--dry-run")["effect"]["drains"] == [newer.unit]
        run.cli("scale", "many", "1")
        assert run.lives_of(newer.unit) == set()
        gets_on(run, older, steps=5)
    run.cli("scale", "many", "+1")
    run.cli("scale", "many", "+1")
    group = next(group for group in run.cli("status")["groups"] if group["name"] == "many")
    assert (group["desired"], group["ready"]) == (3, 3)
    assert sum(len(run.lives_of(f"many-{slot}")) for slot in range(5)) == 3


def test_invalid_scale_is_refused_without_effect(run: Run) -> None:
    before = run.incarnations()
    assert run.raw("scale", "many", "-7").returncode == ExitCode.USAGE
    assert run.raw("scale", "nobody", "2").returncode == ExitCode.UNKNOWN
    assert run.incarnations() == before


# ---- pause ----


@pytest.mark.parametrize(
    ("target", "parked"),
    [
        ("many-1", {"many-1"}),
        ("many", {"many-0", "many-1", "many-2"}),
        ("run", {"many-0", "many-1", "many-2", "one-0"}),
    ],
)
def test_pause_reaches_the_units_and_a_resume_lets_them_work_again(run: Run, target: str, parked: set[str]) -> None:
    workers = ("one-0", "many-0", "many-1", "many-2")
    before = {unit: run.wait_state(unit, "ready").incarnation for unit in workers}

    def exactly(units: set[str]) -> bool:
        rows = run.units()
        found = {unit for unit in workers if rows[unit].phase == "parked"}
        assert found == units
        assert {unit for unit in workers if rows[unit].paused} == units
        return True

    run.cli("pause", target)
    eventually(lambda: exactly(parked), what=f"{target} to be paused")
    assert run.run_row().paused is (target == "run")
    if target == "many-1":
        # A new incarnation of a paused unit starts paused.
        run.cli("restart", "many-1")
        before["many-1"] += 1
        eventually(lambda: exactly(parked), what="the new incarnation to be paused")
    run.cli("resume", target)
    eventually(lambda: exactly(set()), what=f"{target} to be resumed")
    assert {unit: run.unit_row(unit).incarnation for unit in workers} == before
    with at_work(run, next(iter(parked))):
        pass


# ---- process trees ----


def daemons(run: Run, unit: str) -> list[int]:
    run.wait_state(unit, "ready")
    return [int(pid) for pid in (Path(run.dir) / f"children-{unit}.pids").read_text().split()]


def test_nothing_is_left_of_a_restarted_unit_with_daemons(run: Run) -> None:
    before = daemons(run, "forker-0")
    assert all(run.alive(pid) for pid in before)
    run.cli("restart", "forker-0")
    assert not [pid for pid in before if run.alive(pid)]
    after = daemons(run, "forker-0")
    assert len(after) == 3
    assert all(run.alive(pid) for pid in after)


def test_nothing_is_left_of_a_crashed_unit_with_daemons(run: Run) -> None:
    row, before = run.wait_state("forker-0", "ready"), daemons(run, "forker-0")
    run.kill(row.pid, signal.SIGSEGV)
    after = run.wait_incarnation("forker-0", above=row.incarnation)
    assert after.last_exit is not None
    assert after.last_exit.signal == signal.SIGSEGV
    assert not [pid for pid in before if run.alive(pid)]


def test_nothing_is_left_of_a_unit_with_daemons_that_was_scaled_away(run: Run) -> None:
    of = {unit: daemons(run, unit) for unit in ("forker-0", "forker-1")}
    (victim,) = run.cli("scale", "forker", "1", "--dry-run")["effect"]["drains"]
    run.cli("scale", "forker", "1")
    for unit, pids in of.items():
        assert len(pids) == 3
        assert [run.alive(pid) for pid in pids] == [unit != victim] * 3, unit
