"""Units die, stop, hang, run out of memory or never become ready: each end is shown with its evidence and handled."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.protocol.rows import IncidentRow, UnitRow
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import eventually

PROGRAMS = Path(__file__).parent / "programs"
FIRST_LIFE = 'case "$AGENTRL_INCARNATION" in *.1) {first};; esac; exec sleep 1000'


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One run with a group for each way to end."""
    for run in running(tmp_path_factory.mktemp("deaths"), f"t-{uuid.uuid4().hex[:8]}"):
        # Writing stacks takes longer on a busy machine.
        run.config["supervision"]["stacks_grace_s"] = 10.0
        # Six deaths in a row take longer there, too.
        run.config["supervision"]["restart_window_s"] = 600.0
        run.sidecar("victim", sh("echo first words; echo last words; exec sleep 1000"))
        run.unit("stepper", "step_loop", "--every", "0.05")
        run.unit("hanger", "hang", "--at-most", "0.7")
        run.sidecar("loop", [PYTHON, str(PROGRAMS / "blocked_loop.py")], speaks=True)
        run.unit("forker", "detached_children")
        run.unit("ranks", "step_loop", "--every", "0.05", ranks=3)
        run.sidecar("again", sh(FIRST_LIFE.format(first="exit 75")))
        run.sidecar("wrong", sh("echo 'no such model: gpt-0' >&2; exit 78"))
        run.sidecar("job", sh("echo done"), life="job")
        run.sidecar("server", sh(FIRST_LIFE.format(first="exit 0")))
        run.sidecar("crasher", sh("echo about to crash; exit 3"))
        run.sidecar("absent", ["no-such-program-anywhere"])
        run.sidecar("never", sh("exec sleep 1000"), ready={"exec": ["false"]}, start_deadline_s=0.4)
        run.sidecar("glutton", [PYTHON, str(PROGRAMS / "glutton.py")], resources={"memory_max": "64MiB"})
        run.up("--no-wait")
        yield run


CONTINUED = "it was continued (SIGCONT)"


def incidents(run: Run, unit: str) -> list[IncidentRow]:
    found = run.client.events(kinds=("incident",), limit=10_000)
    return [row for row in found if isinstance(row, IncidentRow) and row.unit == unit]


def incident_of(run: Run, unit: str, incarnation: int) -> IncidentRow:
    def found() -> IncidentRow | None:
        of_this_life = (row for row in incidents(run, unit) if row.incarnation == incarnation)
        return next((row for row in of_this_life if row.exit is not None), None)

    return eventually(found, what=f"the end of {unit}.{incarnation} as an incident")


def replaced(run: Run, before: UnitRow) -> UnitRow:
    after = run.wait_incarnation(before.unit, above=before.incarnation)
    assert after.incarnation == before.incarnation + 1
    assert run.lives_of(before.unit) == {f"{before.unit}.{after.incarnation}"}
    return after


def test_killed_unit_is_replaced_at_once_and_shown_with_its_last_lines(run: Run) -> None:
    before = run.wait_state("victim-0", "ready")
    eventually(lambda: b"last words" in run.client.read_logs("victim-0").data, what="its output")
    run.kill(before.pid)
    after = replaced(run, before)
    assert after.restarts == 1
    assert after.deaths_in_window == 1
    found = incident_of(run, "victim-0", before.incarnation)
    assert found.exit is not None
    assert found.exit.signal == signal.SIGKILL
    assert found.tail == ("first words", "last words")
    assert "signal 9" in found.what
    assert found.done == "started again at once"
    assert found.host == before.host


def test_killed_unit_is_shown_with_its_phase_and_status(run: Run) -> None:
    def has_spoken() -> UnitRow | None:
        row = run.wait_state("stepper-0", "ready")
        return row if row.status and row.phase else None

    before = eventually(has_spoken)
    run.kill(before.pid)
    replaced(run, before)
    found = incident_of(run, "stepper-0", before.incarnation)
    assert found.phase == "step"
    assert found.status.startswith("step ")


def test_stopped_unit_is_continued_once_and_replaced_when_it_is_stopped_again(run: Run) -> None:
    before = run.wait_state("stepper-0", "ready")
    run.kill(before.pid, signal.SIGSTOP)

    def goes_on() -> bool:
        row = run.unit_row("stepper-0")
        return row.incarnation == before.incarnation and row.progress > before.progress + 5

    eventually(goes_on, what="the supervisor to continue it")
    (stop,) = incidents(run, "stepper-0")[-1:]
    assert (stop.what, stop.done) == (f"{before.unit}.{before.incarnation} was stopped by a signal", CONTINUED)
    run.kill(before.pid, signal.SIGSTOP)
    after = replaced(run, before)
    assert after.restarts == before.restarts + 1
    found = incident_of(run, "stepper-0", before.incarnation)
    assert "stopped by a signal" in found.what
    assert "Current thread" in _log_of(run, "stepper-0", before.incarnation), "stacks of the stopped unit"


def test_unit_beyond_the_deadline_of_its_phase_is_stacked_and_replaced(run: Run) -> None:
    before = run.wait_state("hanger-0", "ready")
    order = Path(run.dir) / "hang-hanger-0"
    order.touch()
    try:
        eventually(lambda: run.unit_row("hanger-0").incarnation > before.incarnation, what="the hung one to end")
    finally:
        order.unlink()
    run.wait_incarnation("hanger-0", above=before.incarnation)
    found = incident_of(run, "hanger-0", before.incarnation)
    assert "hung: phase 'step' stands still for" in found.what
    assert found.exit is not None
    assert found.exit.signal == signal.SIGABRT
    assert found.phase == "step"
    assert any("hang.py" in line and "in main" in line for line in found.tail), found.tail
    assert found.stacks.endswith(f"hanger-0/{before.incarnation}.log")
    assert "in main" in Path(found.stacks).read_text()


def test_event_loop_that_does_not_turn_outside_a_phase_is_stacked_and_replaced(run: Run) -> None:
    before = run.wait_state("loop-0", "ready")
    (Path(run.dir) / "block-loop-0").touch()
    replaced(run, before)
    found = incident_of(run, "loop-0", before.incarnation)
    assert "its event loop has not turned for" in found.what
    assert "blocked_loop.py" in _log_of(run, "loop-0", before.incarnation)


def test_out_of_memory_deaths_are_counted_separately_and_too_many_are_fatal_with_advice(run: Run) -> None:
    row = run.wait_state("glutton-0", "fatal")
    assert "killed for memory 4 times" in row.reason
    assert "raise resources.memory_max" in row.reason
    assert row.deaths_in_window == 0
    assert row.last_exit is not None
    assert row.last_exit.oom
    found = incidents(run, "glutton-0")
    assert len(found) == 4
    assert all("killed for memory" in each.what for each in found)
    assert all(each.exit is not None and each.exit.oom for each in found)
    assert found[0].tail == ("taking memory",)


def test_nothing_is_left_of_a_killed_unit_with_daemons(run: Run) -> None:
    before = run.wait_state("forker-0", "ready")
    daemons = _daemons(run)
    assert len(daemons) == 3
    assert all(run.alive(pid) for pid in daemons)
    run.kill(before.pid)
    replaced(run, before)
    assert not [pid for pid in daemons if run.alive(pid)]


def test_nothing_is_left_of_a_stopped_unit_with_daemons(run: Run) -> None:
    run.wait_state("forker-0", "ready")
    daemons = _daemons(run)
    run.cli("stop", "forker-0")
    assert run.unit_row("forker-0").state == "stopped"
    assert not [pid for pid in daemons if run.alive(pid)]
    assert run.lives_of("forker-0") == set()
    run.cli("restart", "forker-0")
    run.wait_state("forker-0", "ready")


def test_death_of_one_rank_restarts_the_whole_gang(run: Run) -> None:
    names = [f"ranks-{number}" for number in range(3)]
    before = {name: run.wait_state(name, "ready") for name in names}
    run.kill(before["ranks-1"].pid)
    after = {name: run.wait_incarnation(name, above=before[name].incarnation) for name in names}
    assert {row.incarnation for row in after.values()} == {before["ranks-1"].incarnation + 1}
    # One rank died. The others had to stop with it, which does not count as a death.
    assert [row.restarts - before[name].restarts for name, row in after.items()] == [0, 1, 0]
    assert len(incidents(run, "ranks-1")) == 1
    assert not incidents(run, "ranks-0")
    assert not incidents(run, "ranks-2")


def test_exit_75_starts_again_without_penalty(run: Run) -> None:
    row = run.wait_incarnation("again-0", above=1)
    assert row.incarnation == 2
    assert row.restarts == 0
    assert row.deaths_in_window == 0
    assert not incidents(run, "again-0")


def test_exit_78_is_fatal_at_once_and_shows_the_sentence(run: Run) -> None:
    row = run.wait_state("wrong-0", "fatal")
    assert row.incarnation == 1
    assert "configuration error (exit 78)" in row.reason
    assert incident_of(run, "wrong-0", 1).tail == ("no such model: gpt-0",)


def test_exit_0_ends_a_job_and_is_the_death_of_a_service(run: Run) -> None:
    job = run.wait_state("job-0", "stopped")
    assert (job.reason, job.incarnation, job.restarts) == ("done", 1, 0)
    server = run.wait_incarnation("server-0", above=1)
    assert server.restarts == 1
    assert "exit 0" in incident_of(run, "server-0", 1).what


def test_crash_loop_is_fatal_with_its_reason_and_a_restart_gives_a_new_budget(run: Run) -> None:
    row = run.wait_state("crasher-0", "fatal")
    assert row.incarnation == 6
    assert "died 6 times" in row.reason
    assert "exit 3" in row.reason
    (alert,) = eventually(
        lambda: [a for a in run.cli("alerts", "list") if a["id"] == "unit-fatal:crasher-0"], what="the alert"
    )
    assert "exit 3" in alert["sentence"]
    run.cli("restart", "crasher-0", "--no-wait")
    again = run.wait_incarnation("crasher-0", above=row.incarnation, state="fatal")
    assert again.incarnation == 12  # six more incarnations: the whole budget of the first time


def test_program_that_does_not_exist_is_fatal_without_a_retry(run: Run) -> None:
    row = run.wait_state("absent-0", "fatal")
    assert row.incarnation == 1
    assert "no-such-program-anywhere" in row.reason


def test_unit_that_never_becomes_ready_is_counted_separately(run: Run) -> None:
    row = run.wait_state("never-0", "fatal")
    assert "never came up, 6 times in a row" in row.reason
    assert row.deaths_in_window == 0
    assert run.lives_of("never-0") == set()
    found = incidents(run, "never-0")
    assert found
    assert all("never came up" in each.what for each in found)


def _daemons(run: Run) -> list[int]:
    return [int(line) for line in (Path(run.dir) / "children-forker-0.pids").read_text().split()]


def _log_of(run: Run, unit: str, incarnation: int) -> str:
    return (Path(run.dir) / "logs" / unit / f"{incarnation}.log").read_text()


def test_old_deaths_are_not_shown_as_recent(run: Run) -> None:
    before = run.wait_state("victim-0", "ready")
    run.kill(before.pid)
    died = replaced(run, before)
    assert died.deaths_in_window > 0
    run.cli("tune", "supervision.restart_window_s", "1")
    eventually(lambda: run.unit_row("victim-0").deaths_in_window == 0, what="the window to pass")
    after = run.unit_row("victim-0")
    assert (after.incarnation, after.restarts) == (died.incarnation, died.restarts)
    run.cli("tune", "supervision.restart_window_s", "--undo")
