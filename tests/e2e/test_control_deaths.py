"""When coordinator or host agent die or hang, units continue and are adopted."""

from __future__ import annotations

import re
import signal
import time
from typing import Any

import pytest

from agentrl.client.blocking import BlockingClient
from agentrl.client.client import Client
from agentrl.errors import ExitCode, NoCoordinatorError
from tests.e2e.running import Run
from tests.waiting import eventually

UNITS = 30
APART_S = 5.0
"""The longest delay of a reported age on a busy machine."""


@pytest.fixture
def many(run: Run) -> Run:
    run.unit("tick", "step_loop", "--every", "0.05", count=6)
    run.unit("once", "step_loop", "--every", "0.05", "--waits-for", "web-0", "--waits-s", "1000")
    run.sidecar("web", ["sleep", "1000"], count=UNITS - 7)
    run.up()
    return run


def test_dead_coordinator_is_restarted_and_adopts_all_units(many: Run) -> None:
    eventually(lambda: many.unit_row("once-0").progress == 1)
    eventually(lambda: time.time() - many.unit_row("once-0").progress_at > APART_S, what="its progress to end")
    before, pid, killed = many.units(), many.coordinator_pid(), time.time()
    many.kill(pid)
    eventually(lambda: many.run_row().coordinator_pid not in (0, pid))

    def adopted() -> bool:
        now = many.units()
        return len(now) == UNITS and all(
            r.state == "ready" and r.heard_at >= before[u].heard_at for u, r in now.items()
        )

    eventually(adopted)
    after = many.units()
    assert {u: (r.incarnation, r.pid) for u, r in after.items()} == {
        u: (r.incarnation, r.pid) for u, r in before.items()
    }
    eventually(lambda: many.unit_row("tick-0").progress > before["tick-0"].progress, what="progress goes on")
    assert 0 < after["once-0"].progress_at < killed, "its last progress was before the death of the coordinator"
    assert 0 < many.host().since_at < killed, "the start time of its agent is unchanged"
    (death, *_) = eventually(lambda: incidents(many, "coordinator"), what="its death is an incident")
    assert (f"process {pid}" in death["what"], death["exit"]["signal"]) == (True, signal.SIGKILL)
    # Ends after that still have their exit status, because the agent is the parent.
    many.kill(after["web-0"].pid)
    row = many.wait_incarnation("web-0", above=1)
    assert row.last_exit is not None
    assert row.last_exit.signal == 9


def test_dead_host_agent_is_restarted_and_adopts_all_units(many: Run) -> None:
    before, pid = many.units(), many.agent_pid()
    many.kill(pid, signal.SIGSTOP)
    many.kill(before["web-3"].pid)  # Ends while its parent is dead.
    eventually(lambda: not many.alive(before["web-3"].pid), what="its end")
    many.kill(pid)
    eventually(lambda: many.host().agent_pid not in (0, pid))
    eventually(lambda: incidents(many, "host agent"), what="its death is an incident")
    assert f"process {pid}" in incidents(many, "host agent")[0]["what"]
    row = many.wait_incarnation("web-3", above=1)
    assert row.last_exit is not None
    assert row.last_exit.signal == signal.SIGKILL, "the spawn helper outlived the agent and kept the status"
    after = many.units()
    for unit in before.keys() - {"web-3"}:
        assert (after[unit].incarnation, after[unit].pid) == (before[unit].incarnation, before[unit].pid)
        many.wait_state(unit, "ready")


def test_units_survive_both_deaths_and_the_next_up_adopts_them(many: Run) -> None:
    before = many.units()
    many.kill_agent_and_coordinator()
    assert len(many.processes()) >= UNITS
    code, answer = many.cli("status", check=False)
    assert code == ExitCode.NO_COORDINATOR
    assert "and so is the host agent" in answer["error"]["message"]
    with pytest.raises(NoCoordinatorError, match="and so is the host agent"):
        BlockingClient(
            Client.connect(many.name, state_dir=many.state_dir, timeout_s=3600)
        )  # does not wait for a dead coordinator
    again = many.up()
    assert again is not None
    after = many.units()
    assert {u: (r.incarnation, r.pid) for u, r in after.items()} == {
        u: (r.incarnation, r.pid) for u, r in before.items()
    }
    for unit in after:
        assert len(many.lives_of(unit)) == 1


def incidents(run: Run, whose: str) -> list[dict[str, Any]]:
    return [row for row in run.cli("events", "--kind", "incident") if row["unit"] == whose]


def test_hanging_coordinator_is_continued_then_replaced_while_units_go_on(run: Run) -> None:
    run.unit("tick", "step_loop", "--every", "0.05", count=2)
    run.sidecar("web", ["sleep", "1000"], count=2)
    run.config["supervision"]["coordinator_silent_s"] = 60.0
    run.up()
    # Long enough for the start of a command on a busy machine.
    before, pid, silent_s = run.units(), run.coordinator_pid(), 15.0
    run.cli("tune", "supervision.coordinator_silent_s", str(silent_s))

    run.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    waiting = run.start("up", str(run.file))
    out, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, out + err
    assert f"(process {pid}) is stopped by a signal and does not answer: its host agent replaces it after" in err
    # The last heartbeat of the coordinator is older than its stop.
    assert time.monotonic() - stopped > silent_s / 2, "a coordinator that is only late is not replaced"
    assert run.coordinator_pid() == pid, "it was continued and not replaced"
    eventually(lambda: incidents(run, "coordinator"), what="the stop is an incident")
    stop = incidents(run, "coordinator")[-1]
    assert "stopped by a signal" in stop["what"]
    silence = re.search(r"continued after (\d+) s of silence", stop["done"])
    assert silence is not None
    assert int(silence[1]) >= silent_s

    run.kill(pid, signal.SIGSTOP)
    eventually(lambda: not run.alive(pid), what="a second stop ends it")
    eventually(lambda: run.run_row().coordinator_pid not in (0, pid), what="another one")

    def incident() -> bool:
        (*_, last) = incidents(run, "coordinator")
        return "was silent" in last["what"] and last["exit"]["signal"] in (signal.SIGABRT, signal.SIGKILL)

    eventually(incident, what="its end is an incident")
    assert "coordinator" in run.raw("events", "--kind", "incident").stdout
    after = run.units()
    assert {u: (r.incarnation, r.pid) for u, r in after.items()} == {
        u: (r.incarnation, r.pid) for u, r in before.items()
    }
    for unit in before:
        run.wait_state(unit, "ready")


def test_phase_announced_to_a_dead_coordinator_counts_for_the_next(run: Run) -> None:
    """Code that holds the GIL cannot send a message to the new coordinator before its phase ends."""
    dead_after_s = run.config["supervision"]["dead_after_s"]
    run.unit("held", "native_block", "--seconds", str(dead_after_s * 4), "--at-most", "60", "--hold-gil")
    run.up()
    eventually(lambda: run.unit_row("held-0").phase == "native", what="its phase")
    eventually(lambda: time.time() - run.unit_row("held-0").heard_at > dead_after_s / 2, what="silence")
    pid, incident = run.coordinator_pid(), run.unit_row("held-0").status
    run.kill(pid)
    eventually(lambda: run.run_row().coordinator_pid not in (0, pid))
    eventually(lambda: run.unit_row("held-0").status not in ("", incident), what="the end of the phase")
    assert run.unit_row("held-0").incarnation == 1
