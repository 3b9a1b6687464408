"""A real coordinator in its own process, with any number of registered units that have no processes.

Invariant: the coordinator sees only messages on its socket: a configuration, the hello of a host agent, and a hello of
each unit with the token of its Spawn. This process plays the host agent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import zmq

from agentrl import __version__
from agentrl.client.blocking import BlockingClient
from agentrl.client.client import Client
from agentrl.config.paths import create_run
from agentrl.config.run import RunConfig
from agentrl.config.this_host import this_host
from agentrl.host import procfs
from agentrl.host.agent_lock import AgentLock
from agentrl.protocol import messages
from agentrl.protocol.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, HostFacts
from agentrl.protocol.rows import UnitRow
from agentrl.protocol.wire import decode_from_coordinator, encode
from agentrl.transport.addresses import hub_address
from tests.waiting import eventually

BEAT_S = 1.0
PATIENCE_S = 300.0


class FakeFleet:
    """A coordinator, and the answers of its host agent."""

    def __init__(self, folder: Path) -> None:
        self.name = f"bench-{os.getpid()}"
        self._environ = {**os.environ, "AGENTRL_HOME": str(folder / "home")}
        os.environ["AGENTRL_HOME"] = self._environ["AGENTRL_HOME"]
        self.run = create_run(self.name, folder / "run")
        self.state_dir = folder / "home" / self.name
        self.address = hub_address(self.run.uuid)
        self.host = this_host(self.state_dir).name
        self.spawns: dict[str, messages.Spawn] = {}
        # The coordinator restarts a missing agent of its host, so this process poses as the agent.
        self._claim = AgentLock(self.state_dir / "hosts" / self.host, self.run.uuid, self.host)
        self._output = open(folder / "coordinator.log", "wb")  # noqa: SIM115 - as long as the process
        command = [sys.executable, "-m", "daemons.coordinator", "--state-dir", str(self.state_dir)]
        environ = self._environ | {"AGENTRL_RUN": self.run.uuid}
        self.process = subprocess.Popen(command, env=environ, stdout=self._output, stderr=self._output)
        eventually(lambda: (self.state_dir / "coordinator.json").exists())
        self._over = threading.Event()
        self._agent = threading.Thread(target=self._play_agent, name="played agent", daemon=True)
        self._agent.start()
        self.client = BlockingClient(Client.connect(self.name, state_dir=self.state_dir, timeout_s=PATIENCE_S))

    @property
    def psutil(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def register(self, units: int, supervision: dict[str, float]) -> list[messages.Spawn]:
        """Registers units. Returns their Spawn messages, which have all that a hello needs."""
        config = RunConfig.model_validate(
            {
                "name": self.name,
                "dir": self.run.run_dir,
                "sidecars": {
                    "peer": {"command": ["true"], "count": units, "speaks": True, "start_deadline_s": PATIENCE_S}
                },
                "supervision": supervision,
            }
        )
        self.client.apply(config.model_dump(mode="json"))
        eventually(lambda: len(self.spawns) == units, within_s=PATIENCE_S, what="every unit is ordered to start")
        return list(self.spawns.values())

    def units(self) -> list[UnitRow]:
        rows = self.client.snapshot(("unit",), deadline_s=PATIENCE_S).rows.values()
        return [row for row in rows if isinstance(row, UnitRow)]

    def hello_of(self, spawn: messages.Spawn) -> bytes:
        return encode(
            messages.UnitHello(
                major=PROTOCOL_MAJOR,
                minor=PROTOCOL_MINOR,
                run=self.run.uuid,
                unit=spawn.unit,
                incarnation=spawn.incarnation,
                token=spawn.token,
                pid=os.getpid(),
                ready=True,
                version=__version__,
            )
        )

    def _play_agent(self) -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(self.address)
            identity = self._claim.identity
            facts = HostFacts(cpus=2, memory_bytes=1 << 40, boot_id=procfs.boot_id())
            hello = messages.HostHello(
                PROTOCOL_MAJOR, PROTOCOL_MINOR, self.run.uuid, self.host, identity.pid, identity.start_ticks, facts
            )
            dealer.send(encode(hello))
            seq, beat_at = 0, time.monotonic()
            while not self._over.is_set():
                if time.monotonic() >= beat_at:
                    seq, beat_at = seq + 1, time.monotonic() + BEAT_S
                    dealer.send(encode(messages.HostBeat(seq)))
                if not dealer.poll(100):
                    continue
                message = decode_from_coordinator(dealer.recv())
                if isinstance(message, messages.Spawn):
                    self.spawns[message.unit] = message
                    dealer.send(encode(messages.Spawned(message.unit, message.incarnation, os.getpid(), 1)))

    def close(self) -> None:
        self._over.set()
        self._agent.join()
        self.client.close()
        self.process.terminate()
        self.process.wait(30)
        self._output.close()
        self._claim.release()


@contextmanager
def fake_fleet(folder: Path) -> Iterator[FakeFleet]:
    opened = FakeFleet(folder)
    try:
        yield opened
    finally:
        opened.close()
