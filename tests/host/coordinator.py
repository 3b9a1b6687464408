"""A minimal coordinator: a real hub that welcomes a real host agent process and keeps its messages."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.host.spawn_environment import Home
from agentrl.protocol import wire
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import HostHello, Welcome, WhoAreYou
from agentrl.transport.hub import Hub, Peer
from agentrl.transport.tcp_authentication import Gate
from tests.host.harness import Sent
from tests.waiting import PATIENCE_S, aeventually

ROOT = Path(__file__).parents[2]


@dataclass
class Listener:
    """Handler of the hub's messages."""

    home: Home
    address: str
    sent: Sent = field(default_factory=Sent)
    peer: Peer | None = None
    hub: Hub | None = None

    def take(self, peer: Peer, frame: bytes) -> None:
        message = wire.decode_to_coordinator(frame)
        assert self.hub
        if isinstance(message, HostHello):
            self.peer = peer
            welcome = Welcome(epoch="e", run=self.home.run, run_name="t", now_ct=0.0, heartbeat_s=0.1)
            self.hub.send(peer, wire.encode(welcome))
        elif peer is not self.peer:
            self.hub.send(peer, wire.encode(WhoAreYou()))
            return
        self.sent(message)

    def tell(self, message: Message) -> None:
        assert self.hub
        assert self.peer is not None
        assert self.hub.send(self.peer, wire.encode(message))

    async def hello(self, agent: subprocess.Popen[bytes]) -> HostHello:
        """Wait for the last hello of this agent process."""

        def found() -> HostHello | None:
            assert agent.poll() is None, f"the agent ended with {agent.returncode}"
            return next((m for m in reversed(self.sent.all(HostHello)) if m.agent_pid == agent.pid), None)

        return await aeventually(found, what="hello of the agent")


@contextlib.asynccontextmanager
async def listening(home: Home, folder: Path) -> AsyncIterator[Listener]:
    address = f"ipc://{folder}/hub"
    listener = Listener(home, address)
    gate = Gate()
    gate.start()
    listener.hub = Hub(address, gate=gate, on_message=listener.take)
    listener.hub.start()
    try:
        yield listener
    finally:
        listener.hub.close()
        gate.close()


def start_agent(home: Home, address: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "daemons.host", "--state-dir", str(home.state_dir), "--run-dir", str(home.run_dir)]
    command += ["--name", home.host, "--run", home.run, "--coordinator", address, *arguments]
    with open(home.state_dir / "agent.log", "ab") as output:
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL)


def kill9(agent: subprocess.Popen[bytes]) -> None:
    agent.kill()
    agent.wait()


def agent_log(home: Home) -> str:
    return (home.state_dir / "agent.log").read_text()


async def end(agent: subprocess.Popen[bytes]) -> int:
    agent.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(agent.wait, PATIENCE_S)
