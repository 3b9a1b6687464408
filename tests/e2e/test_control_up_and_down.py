"""`up` and `down` in any order, repeated, concurrent, interrupted, and after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import termios
from pathlib import Path

import psutil

from agentrl.client import find
from agentrl.errors import ExitCode
from tests.e2e.running import PYTHON, UP_WITHIN_S, Run
from tests.waiting import eventually

DEAF = [
    "sh",
    "-c",
    "trap '' TERM INT HUP; touch $AGENTRL_RUN_DIR/deaf-$AGENTRL_INCARNATION; while :; do sleep 0.2; done",
]
"""Ends by SIGKILL only, after it has created its `deaf` file."""


def slow_to_be_ready(run: Run) -> Path:
    """A group that is ready once the file exists."""
    gate = run.file.parent / "slow-may-be-ready"
    run.sidecar("slow", ["sleep", "1000"], ready={"exec": ["test", "-e", str(gate)], "interval_s": 0.1})
    return gate


def deaf(run: Run, *lives: str) -> None:
    """Wait until the programs ignore signals. A program that has just started does not ignore them yet."""
    eventually(lambda: all((run.dir / f"deaf-{life}").exists() for life in lives), what=f"{lives} to be deaf")


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=UP_WITHIN_S)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def pids_in(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\bpid (\d+)", text)}


def units_of(run: Run) -> dict[str, str]:
    """State of every unit; empty while the coordinator does not answer."""
    code, document = run.cli("status", check=False)
    return {row["unit"]: row["state"] for row in document["units"]} if code == 0 else {}


# ---- up ----


def test_two_concurrent_ups_succeed_and_start_each_unit_once(run: Run) -> None:
    run.sidecar("web", ["sleep", "1000"], count=5)
    run.write()
    both = [run.start("up", str(run.file), "--json") for _ in range(2)]
    for process in both:
        code, out, err = ended(process)
        assert code == 0, f"{code}: {out} {err}"
    assert set(run.incarnations().values()) == {1}
    for slot in range(5):
        assert run.lives_of(f"web-{slot}") == {f"web-{slot}.1"}
    for daemon in ("daemons.host", "daemons.coordinator"):
        assert len([p for p in run.processes() if daemon in p.cmdline()]) == 1


def test_second_up_replaces_only_changed_units(run: Run) -> None:
    run.sidecar("same", ["sleep", "1000"], count=2)
    run.sidecar("other", ["sleep", "1001"])
    run.sidecar("gone", ["sleep", "1002"])
    first = run.up()
    assert sorted(first["started"]) == ["gone-0", "other-0", "same-0", "same-1"]
    pids = {name: row.pid for name, row in run.units().items()}

    again = run.up()
    assert sorted(again["kept"]) == sorted(pids)
    assert (again["started"], again["stopped"], again["changed"]) == ([], [], [])
    assert {name: row.pid for name, row in run.units().items()} == pids

    run.config["sidecars"]["other"]["env"] = {"COLOUR": "blue"}
    run.config["sidecars"]["same"]["count"] = 3
    del run.config["sidecars"]["gone"]
    changed = run.up()
    assert (changed["started"], changed["replaced"], changed["stopped"]) == (["same-2"], ["other-0"], ["gone-0"])
    assert changed["kept"] == ["same-0", "same-1"]
    now = run.units()
    assert {name: row.incarnation for name, row in now.items()} == {
        "same-0": 1,
        "same-1": 1,
        "same-2": 1,
        "other-0": 2,
    }
    assert (now["same-0"].pid, now["same-1"].pid) == (pids["same-0"], pids["same-1"])
    eventually(lambda: psutil.Process(now["other-0"].pid).environ().get("COLOUR") == "blue", what="its own variable")

    # A second coordinator for the same state directory is refused, and the first one continues.
    second = subprocess.run(
        [PYTHON, "-m", "daemons.coordinator", "--state-dir", str(run.state_dir)],
        env=run.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == ExitCode.CONFLICT
    assert f"pid {run.coordinator_pid()} " in second.stderr
    assert "Traceback" not in second.stderr
    assert run.incarnations()["other-0"] == 2


def test_ctrl_c_during_up_ends_the_wait_and_the_run_continues(run: Run) -> None:
    gate = slow_to_be_ready(run)
    run.write()
    up = run.start("up", str(run.file))
    _line_with(up, "slow-0 is starting")  # the command is accepted
    up.send_signal(signal.SIGINT)
    code, _, err = ended(up)
    assert code == ExitCode.INTERRUPTED
    assert f"The run {run.name} goes on" in err
    gate.touch()
    assert run.wait_state("slow-0", "ready").incarnation == 1


def test_run_comes_up_after_the_terminal_of_up_was_closed(run: Run) -> None:
    gate = slow_to_be_ready(run)
    run.write()
    # Once at the earliest moment, and once while `up` waits for the units.
    early = _in_a_terminal(run)
    eventually(lambda: (run.state_dir / "run.json").exists())
    early.close()
    eventually(lambda: run.state_dir.exists() and units_of(run).get("slow-0") == "starting")
    late = _in_a_terminal(run)
    eventually(lambda: "slow" in late.read() or "wait" in late.read())
    late.close()
    gate.touch()
    assert run.wait_state("slow-0", "ready").incarnation == 1
    assert run.lives_of("slow-0") == {"slow-0.1"}


class _in_a_terminal:
    """`agentrl up` with a terminal of its own."""

    def __init__(self, run: Run) -> None:
        self._master, slave = os.openpty()
        os.set_blocking(self._master, False)
        self._said = b""
        self.process = subprocess.Popen(
            [PYTHON, "-m", "agentrl", "up", str(run.file)],
            env=run.environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def read(self) -> str:
        with contextlib.suppress(BlockingIOError):
            self._said += os.read(self._master, 65536)
        return self._said.decode(errors="replace")

    def close(self) -> None:
        """Closes the terminal: the kernel sends SIGHUP."""
        os.close(self._master)
        self.process.wait(60)


# ---- concurrent up and down ----


def test_down_during_up_wins(run: Run) -> None:
    slow_to_be_ready(run)
    run.write()
    up = run.start("up", str(run.file), "--json")
    eventually(lambda: run.state_dir.exists() and units_of(run).get("slow-0") == "starting")
    down = run.cli("down", "--yes")
    assert down["proven"]
    code, _, err = ended(up)
    assert code == ExitCode.TAKEN_DOWN, err
    assert not run.processes()


def test_up_during_down_brings_the_run_up_again(run: Run) -> None:
    run.sidecar("deaf", DEAF, count=2, term_grace_s=600.0)
    run.up()
    deaf(run, "deaf-0.1", "deaf-1.1")
    before = run.units().values()
    down = run.start("down", "--yes", "--json")
    eventually(lambda: {(row.state, row.desired) for row in run.units().values()} == {("stopping", False)})
    up = run.start("up", str(run.file), "--json")
    eventually(lambda: all(row.desired for row in run.units().values()), what="the run to be desired again")
    # The graces end only now, on a slow machine too.
    for row in before:
        run.kill(row.pid)
    code, out, err = ended(up)
    assert code == 0, f"{code} {out} {err}"
    states = {name: (row.state, row.incarnation) for name, row in run.units().items()}
    assert states == {"deaf-0": ("ready", 2), "deaf-1": ("ready", 2)}
    code, out, err = ended(down)
    assert code == ExitCode.CONFLICT, f"{code} {out} {err}"
    assert "brought the run up again" in json.loads(out)["lines"][0]
    assert run.units()["deaf-0"].incarnation == 2


# ---- down ----


def test_second_ctrl_c_during_down_kills_the_units(run: Run) -> None:
    run.sidecar("deaf", DEAF, term_grace_s=600.0)
    run.up()
    deaf(run, "deaf-0.1")
    down = run.start("down", "--yes")
    eventually(lambda: units_of(run) == {"deaf-0": "stopping"})
    down.send_signal(signal.SIGINT)
    assert down.stderr is not None
    first = _line_with(down, "Ctrl-C once more kills")
    assert down.poll() is None, first
    down.send_signal(signal.SIGINT)
    code, out, err = ended(down)
    assert code == 0, f"{out} {err}"
    assert "Killing" in err
    assert f"Nothing of {run.name} is left" in out
    assert not run.processes()


def _line_with(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without printing {words!r}")


def test_down_without_a_run_reports_that(run: Run) -> None:
    never = run.cli("down", "--yes")
    assert never["proven"]
    assert not never["was_up"]
    assert f"There is no run named '{run.name}'" in never["lines"][0]
    run.sidecar("web", ["sleep", "1000"])
    run.up()
    assert run.cli("down", "--yes")["proven"]
    again = run.raw("down", "--yes")
    assert again.returncode == 0
    assert f"The run {run.name} is not up" in again.stdout


def test_down_names_and_removes_processes_that_a_crash_left_behind(run: Run) -> None:
    daemon = run.file.parent / "unmarked.pid"
    # A child that forks into a session of its own and drops its environment can only be found by its cgroup.
    unmarked = f"(env -i setsid sh -c 'echo $$ > {daemon}; exec sleep 3601' &) ; exec sleep 1000"
    run.unit("fork", "detached_children", "--children", "2")
    run.sidecar("plain", ["sh", "-c", unmarked])
    run.up()
    eventually(lambda: daemon.exists() and daemon.read_text().strip())
    hidden = int(daemon.read_text())
    daemons = [int(pid) for pid in (run.dir / "children-fork-0.pids").read_text().split()]
    assert len(daemons) == 2
    has_cgroup = run.host().facts.cgroup_kill
    leaders = [row.pid for row in run.units().values()]
    sockets = Path(find(state_dir=run.state_dir).address.removeprefix("ipc://")).parent
    try:
        run.kill_agent_and_coordinator()
        for pid in leaders:
            run.kill(pid)
        preview = run.cli("down", "--dry-run")
        assert set(daemons) <= pids_in(" ".join(preview["effect"]["kills"]))
        assert all(run.alive(pid) for pid in daemons)
        code, down = run.cli("down", "--yes", check=False)
        assert (code, down["proven"]) == ((ExitCode.OK, True) if has_cgroup else (ExitCode.NOT_PROVEN, False))
        lines = " ".join(down["lines"])
        assert set(daemons) <= pids_in(lines)
        assert not any(run.alive(pid) for pid in daemons)
        code, now = run.cli("status", check=False)
        assert code == ExitCode.NO_COORDINATOR
        assert "is not up" in now["error"]["message"], "the run had no processes"
        assert not sockets.exists()
        if has_cgroup:
            assert hidden in pids_in(lines)
            assert not run.alive(hidden)
        else:
            assert "Not proven:" in lines
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(hidden, signal.SIGKILL)


def test_down_finds_a_daemon_that_dropped_its_mark(run: Run) -> None:
    daemon = run.file.parent / "unmarked.pid"
    unmarked = f"(env -i setsid sh -c 'echo $$ > {daemon}; exec sleep 3601' &) ; exec sleep 1000"
    run.sidecar("plain", ["sh", "-c", unmarked])
    run.up()
    eventually(lambda: daemon.exists() and daemon.read_text().strip())
    hidden = int(daemon.read_text())
    run.cli("down", "--yes")
    assert not run.alive(hidden)
