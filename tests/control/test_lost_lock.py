"""A coordinator ends when another one holds the lock of its state directory."""

from __future__ import annotations

import asyncio
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


async def test_coordinator_whose_lock_another_one_took_ends_and_leaves_it_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "home"))
    run = create_run("lost-lock", tmp_path / "run")
    state = state_dir(run.name)
    serving = asyncio.create_task(Coordinator(state).serve())
    await aeventually((state / "coordinator.json").exists, what="the coordinator")
    (state / "lock").unlink()
    other = StateLock.acquire(state, host="far", at=1.0)
    sockets = runtime_dir(run.uuid)
    shutil.rmtree(sockets)
    (state / "coordinator.json").write_text("of the other one")
    (tmp_path / "run" / "coordinator.json").write_text("of the other one")
    try:
        with pytest.raises(ConflictError, match="on host far"):
            await asyncio.wait_for(serving, PATIENCE_S)
        assert (state / "coordinator.json").read_text() == "of the other one"
        assert (tmp_path / "run" / "coordinator.json").exists()
        assert not sockets.exists()
    finally:
        other.release()
        # The coordinator may have started a host agent.
        await asyncio.to_thread(process_scan.scan, run.uuid, "test", kill=True)
