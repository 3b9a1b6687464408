"""A fake coordinator for one unit: a real hub that welcomes, answers and keeps all messages.

Invariant: every kept message was sent by the unit and decoded by the coordinator's own decoder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from agentrl.protocol import messages, wire
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.messages import FromCoordinator
from agentrl.transport.hub import Hub, Peer
from agentrl.transport.tcp_authentication import Gate
from tests.waiting import PATIENCE_S, aeventually

M = TypeVar("M")
ROOT = Path(__file__).parents[2]
HEARTBEAT_S = 0.2


class Counterpart:
    """Works inside a running loop: call `start`, then `of(kind)` for the received messages."""

    def __init__(self, directory: Path, *, orphan_lease_s: float = 60.0) -> None:
        self.directory = directory
        self.address = f"ipc://{directory}/hub"
        self.orphan_lease_s = orphan_lease_s
        self.knobs: dict[str, KnobValue] = {}
        self.paused = False
        self.refusal: messages.Refused | None = None
        self.silent = False
        """Receives all messages and answers none."""
        self.got: list[tuple[float, object]] = []
        self.peer: Peer | None = None
        self._gate: Gate | None = None
        self._hub: Hub | None = None

    def start(self) -> None:
        self._gate = Gate()
        self._gate.start()
        self._hub = Hub(self.address, gate=self._gate, on_message=self._received)
        self._hub.start()

    def close(self) -> None:
        if self._hub and self._gate:
            self._hub.close()
            self._gate.close()
            self._hub = self._gate = None

    def tell(self, message: FromCoordinator) -> None:
        assert self._hub
        assert self.peer
        self._hub.send(self.peer, wire.encode(message))

    def of(self, kind: type[M]) -> list[M]:
        return [message for _, message in self.got if isinstance(message, kind)]

    def times_of(self, kind: type[object]) -> list[float]:
        return [at for at, message in self.got if isinstance(message, kind)]

    @property
    def report(self) -> messages.UnitReport:
        """The newest report; an empty one before the first."""
        return (self.of(messages.UnitReport) or [messages.UnitReport()])[-1]

    async def byes(self) -> list[messages.Bye]:
        """Wait for the unit's Bye, after which all its earlier messages are here. The process may end earlier."""
        await aeventually(lambda: self.of(messages.Bye), what="a goodbye")
        return self.of(messages.Bye)

    def _received(self, peer: Peer, frame: bytes) -> None:
        message = wire.decode_to_coordinator(frame)
        self.got.append((time.monotonic(), message))
        self.peer = peer
        if self.silent:
            return
        if isinstance(message, messages.UnitHello):
            self.tell(self.refusal or self._welcome())
        elif isinstance(message, messages.Beat) and message.ack:
            self.tell(messages.BeatAck(message.seq, 0.0))

    def _welcome(self) -> messages.Welcome:
        return messages.Welcome(
            epoch="e",
            run="run-uuid",
            run_name="test",
            now_ct=0.0,
            heartbeat_s=HEARTBEAT_S,
            orphan_lease_s=self.orphan_lease_s,
            knobs=self.knobs,
            paused=self.paused,
        )


class Process:
    """A unit as a real process, its log in a file."""

    def __init__(self, counterpart: Counterpart, arguments: Iterable[str], *, supervised: bool = True) -> None:
        directory = counterpart.directory
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")}
        environment |= {"AGENTRL_RUN_DIR": str(directory), "PYTHONPATH": str(ROOT)}
        if supervised:
            environment |= {
                "AGENTRL_RUN": "run-uuid",
                "AGENTRL_INCARNATION": "web-3.7",
                "AGENTRL_GROUP": "web",
                "AGENTRL_COORDINATOR": counterpart.address,
                "AGENTRL_TOKEN": "secret",
                "AGENTRL_HEARTBEAT_S": str(HEARTBEAT_S),
                "AGENTRL_ORPHAN_LEASE_S": str(counterpart.orphan_lease_s),
            }
        self.log = directory / "unit.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def code(self) -> int:
        """The exit status, once it ended."""
        await aeventually(lambda: self.process.poll() is not None, what=f"end of {self.text()}")
        return int(self.process.returncode)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
