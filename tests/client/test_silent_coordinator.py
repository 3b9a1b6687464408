"""A coordinator whose process lives and says nothing: what a person is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.client import Client
from agentrl.client.living import coordinator_of, start_ticks
from agentrl.config import paths
from agentrl.errors import NoCoordinatorError
from tests.waiting import eventually


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The coordinator of the run `mine`: a process that was stopped by a signal."""
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    paths.create_run("mine", tmp_path / "run")
    state = paths.state_dir("mine")
    process = subprocess.Popen(["sleep", "1000"])
    where = {name: f"ipc://{tmp_path}/{name}" for name in ("address", "feed", "metrics")}
    who = {"pid": process.pid, "start_ticks": start_ticks(process.pid)}
    (state / "coordinator.json").write_text(json.dumps({**who, **where}))
    os.kill(process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: (living := coordinator_of(state)) is not None and "stopped" in living.condition)
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def test_who_asks_is_told_that_it_is_stopped_and_who_sees_to_it(stopped: int) -> None:
    with pytest.raises(NoCoordinatorError, match=r"does not answer within 0\.1 s") as silent:
        async with Client.connect("mine", timeout_s=0.1):
            pass
    assert f"Its process ({stopped}) is stopped by a signal." in silent.value.hint
    assert "supervision.coordinator_silent_s" in silent.value.hint
