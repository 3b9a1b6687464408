"""A coordinator ends when another one holds the lock of its state directory or has taken its run directory."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from agentrl.config.paths import create_run, state_dir
from agentrl.control.coordinator import Coordinator
from agentrl.control.persistence.state_lock import StateLock
from agentrl.errors import ConflictError
from agentrl.host import process_scan
from agentrl.transport.addresses import runtime_dir
from tests.waiting import PATIENCE_S, aeventually


@pytest.mark.parametrize("took", ["the lock", "the run directory"])
async def test_coordinator_ends_when_another_takes_its_run_and_leaves_the_files_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: str
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "home"))
    run = create_run("lost-lock", tmp_path / "run")
    state = state_dir(run.name)
    serving = asyncio.create_task(Coordinator(state).serve())
    await aeventually((state / "coordinator.json").exists, what="the coordinator")
    marker, other = tmp_path / "run" / "coordinator.json", None
    await aeventually(marker.exists, what="its marker")
    sockets = runtime_dir(run.uuid)
    shutil.rmtree(sockets)
    (state / "coordinator.json").write_text("of the other one")
    if took == "the lock":
        (state / "lock").unlink()
        other = StateLock.acquire(state, host="far", at=1.0)
        marker.write_text("of the other one")
    else:
        # On another host, whose clock is far behind.
        of_far = {"host": "far", "boot_id": "of-far", "heartbeat_at": 1.0}
        marker.write_text(json.dumps(json.loads(marker.read_text()) | of_far))
    written = marker.read_text()
    try:
        with pytest.raises(ConflictError, match="on host far"):
            await asyncio.wait_for(serving, PATIENCE_S)
        assert (state / "coordinator.json").read_text() == "of the other one"
        assert marker.read_text() == written
        assert not sockets.exists()
    finally:
        if other is not None:
            other.release()
        # The coordinator may have started a host agent.
        await asyncio.to_thread(process_scan.scan, run.uuid, "test", kill=True)
