"""`agent.json` names the living host agent, also after it was deleted or could not be written."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from agentrl.host.agent_lock import AgentFile, AgentLock, read_agent_file
from tests.disks import fill, small_disk
from tests.host.coordinator import end, listening, start_agent
from tests.host.harness import Bench
from tests.waiting import aeventually


@pytest.mark.parametrize("left", [b"", msgspec.json.encode(AgentFile(1, 1, "boot", "h", "run" * 100))])
def test_agent_on_a_full_disk_replaces_the_former_name_at_once_or_writes_its_own_later(
    tmp_path: Path, left: bytes
) -> None:
    folder = tmp_path / "small"
    with small_disk(folder, "128k"):
        path = folder / "hosts/h/agent.json"
        path.parent.mkdir(parents=True)
        if left:
            path.write_bytes(left)
        fill(folder / "ballast")
        lock = AgentLock(path.parent, "run", "h")
        known = read_agent_file(folder, "h")
        assert (known is not None) == bool(left)
        (folder / "ballast").unlink()
        lock.restore_file()
        known = read_agent_file(folder, "h")
        assert known is not None
        assert (known.pid, known.run) == (os.getpid(), "run")
        lock.release()


async def test_living_agent_writes_its_deleted_file_again(bench: Bench, tmp_path: Path) -> None:
    home = bench.home
    path = home.state_dir / "hosts" / home.host / "agent.json"
    async with listening(home, tmp_path) as coordinator:
        agent = start_agent(home, coordinator.address)
        await coordinator.hello(agent)
        path.unlink()
        known = await aeventually(lambda: read_agent_file(home.state_dir, home.host))
        assert known.pid == agent.pid
        await end(agent)
