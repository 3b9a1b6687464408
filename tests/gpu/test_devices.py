"""The devices of a real host: they are listed, one is given to a unit, and the processes on it are known."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from agentrl.host.accelerators import Accelerators
from agentrl.protocol.messages import Exited, HostStats, ProcessInfo, Spawn
from agentrl.protocol.specs import GroupSpec, Role
from tests.host.harness import Bench, home

COMPUTES = "import os, torch, time; torch.ones(1 << 24, device='cuda').sum().item(); time.sleep(600)"
SEES = "import os, torch; print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).total_memory)"


def test_nvml_lists_the_devices_that_torch_sees() -> None:
    accelerators = Accelerators()
    accelerators.start()
    accelerators.stop()
    assert accelerators.problem == ""
    assert len(accelerators.devices) == torch.cuda.device_count()
    for device, use in zip(accelerators.devices, accelerators.use(lambda _: ""), strict=True):
        assert device.memory_bytes > 0
        assert device.name
        assert use.temperature_c > 0
        seen = subprocess.run(
            [sys.executable, "-c", SEES],
            env={**os.environ, **accelerators.variables([device.id])},
            capture_output=True,
            text=True,
            check=True,
        )
        count, memory = seen.stdout.split()
        assert count == "1"
        assert abs(int(memory) - device.memory_bytes) < 0.05 * device.memory_bytes


async def test_process_of_a_unit_is_shown_on_its_device(tmp_path: Path) -> None:
    bench = Bench(home(tmp_path))

    def others(processes: Iterable[ProcessInfo]) -> list[ProcessInfo]:
        """All processes except that of the tests, in which earlier tests have computed. In a container the driver may
        hide processes, or show their pids on the host."""
        return [one for one in processes if one.pid != os.getpid()]

    async with bench.tidy_agent() as agent:
        device = agent.hello().facts.devices[0]
        spec = GroupSpec(name="web", role=Role.SIDECAR, command=(sys.executable, "-c", COMPUTES))
        agent.receive(Spawn("web-0", 1, "token", spec, "ipc:///nowhere", (device.id,)))

        def on_device() -> bool:
            assert not bench.sent.all(Exited)
            stats = bench.sent.all(HostStats)
            used = [use for use in stats[-1].devices if use.id == device.id] if stats else []
            return any(others(use.processes) and use.memory_used_bytes > 1 << 26 for use in used)

        async with asyncio.timeout(120):
            while not on_device():
                await asyncio.sleep(0.1)
        processes = next(u for u in bench.sent.all(HostStats)[-1].devices if u.id == device.id).processes
        visible = [one for one in others(processes) if one.command]
        assert all(one.incarnation == "web-0.1" for one in visible), processes
