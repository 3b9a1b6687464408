"""On a full disk units continue, commands and starts are refused, and an alert fires; free space ends all of it.

State and logs are on two small disks of their own, so that each can be full while the other is not.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.errors import DiskError, ExitCode
from agentrl.protocol.control_commands import Pause, Resume
from agentrl.protocol.rows import UnitRow
from tests.e2e.running import Run, running
from tests.waiting import eventually

FILES = 400
CHATTY = 'n=0; while :; do n=$((n+1)); echo "line $n" 2>/dev/null || :; sleep 0.02; done'
"""Writes a line fifty times a second and ignores errors."""


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={FILES},mode=0700", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.fail(f"{' '.join(command)}: {mounted.stderr.strip()}; run this as root: `sudo make test`")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """The disk of the folder has no free byte and no free inode."""
    ballast = folder / "ballast"
    ballast.mkdir()
    try:
        with contextlib.suppress(OSError), (ballast / "bytes").open("wb", buffering=0) as file:
            while os.write(file.fileno(), b"x" * 4096):
                pass
        with contextlib.suppress(OSError):
            for number in range(FILES):
                (ballast / str(number)).touch()
        yield
    finally:
        shutil.rmtree(ballast)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("disk")
    with small_disk(folder / "home", "16m"), small_disk(folder / "run", "4m"):
        for run in running(folder, f"t-{uuid.uuid4().hex[:8]}"):
            run.unit("step", "step_loop", "--every", "0.05", count=2)
            run.sidecar("chat", ["sh", "-c", CHATTY])
            run.sidecar("web", ["sleep", "1000"], count=2)
            run.up()
            yield run


def goes_on(run: Run, unit: str = "step-0") -> None:
    seen = run.unit_row(unit).progress
    eventually(lambda: run.unit_row(unit).progress > seen + 5, what=f"{unit} to go on")


def alert(run: Run, id: str) -> dict[str, Any]:
    def firing() -> dict[str, Any] | None:
        listed: list[dict[str, Any]] = run.cli("alerts", "list")
        return next((each for each in listed if each["id"] == id and each["state"] == "firing"), None)

    return eventually(firing, what=f"the alert {id}")


def refused(run: Run) -> DiskError:
    """Sends commands until one needs space that is missing."""

    def no_more() -> DiskError | None:
        for command, args in (("pause", Pause("web")), ("resume", Resume("web"))):
            try:
                run.client.call(command, args)
            except DiskError as full:
                return full
        return None

    return eventually(no_more, what="a command to be refused")


def accepted_again(run: Run) -> None:
    def taken() -> bool:
        code, _ = run.cli("resume", "web", check=False)
        assert code == ExitCode.OK, f"exit {code}"
        return True

    eventually(taken, what="a command to be accepted again")
    assert run.run_row().journal_full == ""


def test_full_disk_of_logs_stops_no_unit_and_makes_no_unit_fatal(run: Run) -> None:
    before = run.units()
    log = run.dir / "logs" / "chat-0" / "1.log"
    with filled(run.dir):
        size = log.stat().st_size
        run.kill(before["web-0"].pid)
        # Its starts fail because of the disk, so it must not become fatal.
        eventually(lambda: run.unit_row("web-0").incarnation > 8, what="many attempts")

        def said_why() -> UnitRow | None:
            row = run.unit_row("web-0")
            assert row.state != "fatal"
            return row if "No space left on device" in row.reason else None

        row = eventually(said_why, what="the reason, between two attempts")
        goes_on(run)
        eventually(lambda: str(run.dir) in run.host().disk_full, what="its host to report it with the next measurement")
        shown = alert(run, f"host-cannot-write:{run.host().host}")
        assert "cannot write" in shown["sentence"]
        assert log.stat().st_size - size < 4096
    run.wait_incarnation("web-0", above=row.incarnation)
    eventually(lambda: log.stat().st_size > size + 4096, what="the log to grow again")
    eventually(lambda: run.host().disk_full == "")
    after = run.units()
    for unit in set(before) - {"web-0"}:
        assert (after[unit].incarnation, after[unit].pid) == (before[unit].incarnation, before[unit].pid)


def test_full_disk_of_state_stops_no_unit_and_refuses_commands(run: Run) -> None:
    run.cli("scale", "web", "3")
    before = run.units()
    with filled(run.home):
        full = refused(run)
        assert "nothing was changed" in full.message
        code, _ = run.cli("scale", "web", "5", check=False)
        assert code == ExitCode.DISK
        stderr = run.raw("scale", "web", "5").stderr
        assert "The journal" in stderr
        assert "Free some space" in stderr
        assert "disk is full" in run.run_row().journal_full
        assert "commands are refused" in alert(run, f"journal-full:{run.name}")["sentence"]
        run.kill(before["web-0"].pid)
        eventually(lambda: not run.alive(before["web-0"].pid), what="its end")
        goes_on(run)
        assert run.lives_of("web-0") == set(), "no unit is started before it is in the journal"
    run.wait_incarnation("web-0", above=before["web-0"].incarnation)
    accepted_again(run)
    after = run.units()
    assert set(after) == set(before), "the refused command was not executed"
    for unit in set(before) - {"web-0"}:
        assert (after[unit].incarnation, after[unit].pid) == (before[unit].incarnation, before[unit].pid)


def test_coordinator_that_dies_on_a_full_disk_restarts_when_there_is_space(run: Run) -> None:
    before = run.units()
    pid = run.coordinator_pid()
    with filled(run.home):
        refused(run)
        run.kill(pid)
        eventually(lambda: not run.alive(pid))
        assert {run_id for unit in before for run_id in run.lives_of(unit)} == {
            f"{unit}.{row.incarnation}" for unit, row in before.items()
        }
    eventually(lambda: run.run_row().coordinator_pid not in (0, pid), what="the next coordinator")
    accepted_again(run)
    eventually(lambda: all(row.state == "ready" for row in run.units().values()))
    assert {u: (r.incarnation, r.pid) for u, r in run.units().items()} == {
        u: (r.incarnation, r.pid) for u, r in before.items()
    }
    goes_on(run)


def test_file_size_limit_acts_like_a_full_disk(run: Run) -> None:
    coordinator = psutil.Process(run.coordinator_pid())
    usual = coordinator.rlimit(resource.RLIMIT_FSIZE)
    coordinator.rlimit(resource.RLIMIT_FSIZE, (1, usual[1]))
    try:
        assert "The journal" in refused(run).message
        goes_on(run)
    finally:
        coordinator.rlimit(resource.RLIMIT_FSIZE, usual)
    accepted_again(run)
    assert coordinator.is_running()
    down = run.cli("down", "--yes")
    assert down["proven"]
