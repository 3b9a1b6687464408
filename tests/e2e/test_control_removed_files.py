"""A coordinator whose sockets and files are removed or unreadable loses neither its units nor control of them."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import msgspec
import pytest

from agentrl.client.discovery import find
from agentrl.control.persistence.journal_schema import checksum
from agentrl.host import process_scan
from tests.e2e.running import PYTHON, Run
from tests.waiting import eventually


@pytest.fixture
def small(run: Run) -> Run:
    run.unit("tick", "step_loop", "--every", "0.05", count=2)
    run.sidecar("web", ["sleep", "1000"])
    run.up()
    return run


FILES = ("coordinator.json", "lock", "journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm")


def remove(run: Run, *files: str) -> Path:
    """Remove the directory of the sockets and some files of the state directory."""
    sockets = Path(find(state_dir=run.state_dir).address.removeprefix("ipc://")).parent
    shutil.rmtree(sockets)
    for file in files:
        (run.state_dir / file).unlink()
    return sockets


def test_removed_files_are_restored_and_no_unit_is_disturbed(small: Run) -> None:
    before, pid = small.units(), small.coordinator_pid()
    sockets = remove(small, *FILES, "run.json")
    eventually((sockets / "metrics").exists, what="the sockets to be restored")
    eventually((small.state_dir / "run.json").exists, what="the files to be restored")
    assert small.cli("status")["run"]["coordinator_pid"] == pid
    assert small.cli("scale", "web", "2")["operation"]["state"] == "succeeded"
    kept = {unit: (row.incarnation, row.pid) for unit, row in small.units().items() if unit in before}
    assert kept == {unit: (row.incarnation, row.pid) for unit, row in before.items()}
    # The next coordinator reads what was in the removed journal and what came after it.
    small.kill(pid)
    eventually(lambda: small.run_row().coordinator_pid not in (0, pid))
    eventually(lambda: len(small.units()) == 4 and all(row.state == "ready" for row in small.units().values()))
    assert {unit: (small.unit_row(unit).incarnation, small.unit_row(unit).pid) for unit in before} == kept
    restored = small.raw("events").stdout
    assert "the journal" in restored
    assert "the socket for commands" in restored


def test_down_right_after_the_removal_still_drains(small: Run) -> None:
    remove(small, *FILES)
    lines = small.cli("down")["lines"]
    assert not [line for line in lines if line.startswith("killed")]


@pytest.mark.parametrize("supervised", [True, False], ids=["with its coordinator", "without its coordinator"])
def test_down_ends_a_run_whose_state_directory_was_deleted(small: Run, supervised: bool) -> None:
    lives, uuid = {str(row.pid) for row in small.units().values()}, small.uuid()
    if not supervised:
        small.kill(small.agent_pid(), signal.SIGSTOP)
        small.kill(small.coordinator_pid())
        small.kill(small.agent_pid())
    shutil.rmtree(small.state_dir)
    for named in ((), ("--run", small.name)):
        command = [PYTHON, "-m", "agentrl", "down", "--dry-run", *named]
        preview = subprocess.run(command, env=small.environ, capture_output=True, text=True, timeout=60, check=True)
        assert all(f"pid {pid}" in preview.stdout for pid in lives), preview
    done = small.cli("down", "--yes")
    assert done["proven"]
    assert all(any(f"pid {pid}" in line for line in done["lines"]) for pid in lives), done
    assert not process_scan.scan(uuid, "here").found


def test_units_with_unreadable_journal_entries_go_on(small: Run) -> None:
    before, pid, agent = small.units(), small.coordinator_pid(), small.agent_pid()
    small.kill(agent, signal.SIGSTOP)
    small.kill(pid)
    eventually(lambda: not small.alive(pid))
    with sqlite3.connect(small.state_dir / "journal.sqlite") as db:
        (body,) = db.execute("SELECT body FROM state WHERE kind = 'slot' AND key = 'tick-0'").fetchone()
        newer = msgspec.msgpack.encode({**msgspec.msgpack.decode(body), "state": "hibernating"})
        for unit, changed in (("tick-0", newer), ("tick-1", b"\xc1"), ("web-0", b"\xc1")):
            values = (changed, checksum("slot", unit, changed), unit)
            db.execute("UPDATE state SET body = ?, crc = ? WHERE kind = 'slot' AND key = ?", values)
    small.kill(agent, signal.SIGCONT)
    eventually(lambda: small.run_row().coordinator_pid not in (0, pid))
    eventually(lambda: all(row.state == "ready" for row in small.units().values()))
    kept = {unit: (row.incarnation, row.pid) for unit, row in small.units().items()}
    assert kept == {unit: (row.incarnation, row.pid) for unit, row in before.items()}
    progress = small.unit_row("tick-1").progress
    eventually(lambda: small.unit_row("tick-1").progress > progress, what="its heartbeats to be accepted")
    incidents = small.raw("events").stdout
    for unit in before:
        assert f"the journal entry slot {unit} cannot be read" in incidents
