"""A coordinator whose sockets and files are removed restores them, and loses neither its units nor control of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentrl.client.discovery import find
from tests.e2e.running import Run
from tests.waiting import eventually

WHOLE_WITHIN_S = 10.0


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
    eventually((sockets / "metrics").exists, within_s=WHOLE_WITHIN_S, what="the sockets to be restored")
    eventually((small.state_dir / "run.json").exists, within_s=WHOLE_WITHIN_S, what="the files to be restored")
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
