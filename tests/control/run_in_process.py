"""A coordinator inside the test's process, with real host agents: a quick way to bring runs up on one or two hosts.

Invariant: sockets, keys, agents and units are real. The host name comes from `AGENTRL_HOST_NAME`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.cli.start_coordinator import Place
from agentrl.client.client import Client
from agentrl.config.paths import create_run, state_dir
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.config.this_host import this_host
from agentrl.control.coordinator import Coordinator
from agentrl.host import process_scan, procfs
from agentrl.placement.agent_process import living_agent
from agentrl.placement.local import start_own_agent
from agentrl.protocol.messages import Permission
from agentrl.protocol.rows import HostRow, OperationRow, UnitRow
from agentrl.transport.addresses import hub_address
from agentrl.transport.curve_keys import ClientKey, new_keypair
from tests.ports import free_triplet
from tests.waiting import PATIENCE_S, aeventually

ROOT = Path(__file__).parents[2]


class RunInProcess:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, host_name: str, *arguments: str) -> None:
        self._folder, self._monkeypatch, self._arguments = folder, monkeypatch, arguments
        monkeypatch.setenv("AGENTRL_HOST_NAME", host_name)
        monkeypatch.setenv("AGENTRL_HOME", str(folder / "home"))
        monkeypatch.chdir(ROOT)
        run = create_run(f"t-{uuid.uuid4().hex[:8]}", folder / "run")
        self.uuid, self.state_dir = run.uuid, state_dir(run.name)
        self.place = Place(run.name, self.state_dir, folder / "run")
        self.listen = f"tcp://127.0.0.1:{free_triplet()}"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._serving: asyncio.Task[None] | None = None
        self.client: Client | None = None

    # ---- hosts ----

    async def start(self) -> None:
        """Like `up`: the agent of this host, and the coordinator."""
        self._agent("here", "--state-dir", str(self.state_dir), "--coordinator", hub_address(self.uuid))
        await aeventually(lambda: living_agent(self.state_dir, self.place.host), what="the agent")
        await self.start_coordinator()

    async def start_coordinator(self) -> None:
        coordinator = Coordinator(self.state_dir)
        self._serving = asyncio.create_task(coordinator.serve())
        self.stop_coordinator = coordinator.stop
        await aeventually((self.state_dir / "coordinator.json").exists, what="the coordinator")
        client = Client.connect(self.place.name, state_dir=self.state_dir, timeout_s=PATIENCE_S)
        self.client = await client.__aenter__()

    async def restart_coordinator(self, host_name: str) -> None:
        """Restart the coordinator with this host name, which may differ from the one before."""
        assert self._serving is not None
        self._monkeypatch.setenv("AGENTRL_HOST_NAME", host_name)
        await self.close_client()
        self.stop_coordinator()
        await self._serving
        # Like `up`, this does not start an agent that is alive.
        before = self.agents["here"].pid
        assert start_own_agent(self.state_dir, self._folder / "run", self.uuid).pid == before
        await self.start_coordinator()

    async def join(self, host_name: str, key: str = "other") -> subprocess.Popen[bytes]:
        """Start the agent of a second machine, which has a state directory of its own and connects over tcp."""
        file = self._folder / f"{key}.key"
        if not file.exists():
            await self._make_key(key, file)
        directory = str(self._folder / f"state-{len(self.agents)}")
        self._monkeypatch.setenv("AGENTRL_HOST_NAME", host_name)
        arguments = ("--state-dir", directory, "--coordinator", self.listen, "--key", str(file))
        return self._agent(f"there-{len(self.agents)}", *arguments)

    async def _make_key(self, name: str, file: Path) -> None:
        assert self.client is not None
        pair = new_keypair()
        await self.client.add_key(name=name, public=pair.public, permission=Permission.HOST)
        address = msgspec.json.decode((self.state_dir / "coordinator.json").read_bytes())
        ClientKey(name, pair.public, pair.secret, address["public"], self.listen).save(file)

    def _agent(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "daemons.host", "--run", self.uuid, "--run-dir", str(self._folder / "run")]
        with (self._folder / f"{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen([*command, *self._arguments, *arguments], stdout=log, stderr=log)
        return self.agents[name]

    def log_of(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    # ---- commands ----

    async def up(self, **sidecars: dict[str, Any]) -> None:
        assert self.client is not None
        times = SupervisionTimes().scaled(0.25).model_dump()
        config = {
            "name": self.place.name,
            "dir": str(self._folder / "run"),
            "coordinator": {"listen": self.listen},
            "sidecars": sidecars,
            "supervision": {name: value for name, value in times.items() if name.endswith("_s")},
        }
        await self.client.apply(config)

    async def down(self) -> OperationRow:
        assert self.client is not None
        accepted = await self.client.down()
        return await self.client.wait(accepted.operation, timeout_s=PATIENCE_S)

    # ---- state ----

    async def rows(self) -> dict[str, Any]:
        assert self.client is not None
        return dict((await self.client.snapshot(deadline_s=PATIENCE_S)).rows)

    async def units(self) -> dict[str, UnitRow]:
        return {row.unit: row for row in (await self.rows()).values() if isinstance(row, UnitRow)}

    async def hosts(self) -> dict[str, str]:
        return {row.host: row.state for row in (await self.rows()).values() if isinstance(row, HostRow)}

    async def wait_hosts(self, *names: str) -> None:
        async def connected() -> bool:
            found = await self.hosts()
            assert found == dict.fromkeys(names, "up"), f"{found}; {[self.log_of(name) for name in self.agents]}"
            return True

        await aeventually(connected, what=f"hosts {names}")

    async def wait_ready(self, *names: str) -> dict[str, UnitRow]:
        async def ready() -> dict[str, UnitRow] | None:
            units = await self.units()
            assert {unit: row.state for unit, row in units.items()} == dict.fromkeys(names, "ready"), units
            return units

        found = await aeventually(ready, what=f"units {names}")
        assert found is not None
        return found

    def processes(self) -> list[tuple[int, str]]:
        """The living units, with their incarnations."""
        marks = {pid: procfs.marks(pid) or {} for pid in procfs.all_pids()}
        mine = {pid: found for pid, found in marks.items() if found.get(procfs.MARK_RUN) == self.uuid.encode()}
        lives = {pid: found.get(procfs.MARK_INCARNATION, b"").decode() for pid, found in mine.items()}
        return sorted((pid, life) for pid, life in lives.items() if life)

    # ---- end ----

    async def close_client(self) -> None:
        if self.client is not None:
            await self.client.__aexit__(None, None, None)
            self.client = None

    async def close(self) -> None:
        await self.close_client()
        if self._serving is not None:
            self.stop_coordinator()
            await self._serving
        for agent in self.agents.values():
            agent.kill()
            agent.wait(PATIENCE_S)
        await asyncio.to_thread(process_scan.scan, self.uuid, "test", kill=True)
        assert this_host(self.state_dir).name == self.place.host
