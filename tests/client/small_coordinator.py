"""A small coordinator on real sockets: it answers hellos, keeps rows, executes each request id once, and can die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.control.state.feed_publisher import Feed
from agentrl.errors import ExitCode
from agentrl.protocol import commands, control_commands, wire
from agentrl.protocol.effects import Consent, Effect, Tier
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import (
    PROTOCOL_MAJOR,
    ClientHello,
    ErrorReply,
    Refused,
    Reply,
    Request,
    SnapshotEnd,
    SnapshotRow,
    Welcome,
    WhoAreYou,
)
from agentrl.protocol.rows import GroupRow, OperationRow, OperationState, RunRow
from agentrl.transport.curve_keys import KeyPair, new_keypair
from agentrl.transport.hub import Hub, Peer
from agentrl.transport.publisher import Publisher
from agentrl.transport.tcp_authentication import Gate

UUID = "0123abcd-0000-4000-8000-000000000000"
TICK_S = 0.05


class SmallCoordinator:
    """`start` and `die` may alternate. Executed requests survive a death; connections and the epoch do not."""

    def __init__(self, directory: Path, *, listen: tuple[str, str] = ("", "")) -> None:
        self.directory = directory
        self.listen, self.feed_listen = listen
        self.server: KeyPair = new_keypair()
        self.keyring: dict[str, str] = {}
        self.rows: dict[str, GroupRow | OperationRow] = {}
        self.executed: dict[str, str] = {}
        """Name of the command by the id of the request."""
        self.requests: list[Request] = []
        self.hellos: list[ClientHello] = []
        self.mute = False
        """Requests are executed but not answered."""
        self.feed_works = True
        self.refuse_hello: Refused | None = None
        self.before_answer: Callable[[Request], None] | None = None
        self.lives = 0
        self.alive = False

    @property
    def address(self) -> str:
        return f"ipc://{self.directory}/hub"

    def start(self) -> None:
        self.lives += 1
        self.epoch = f"epoch-{self.lives}"
        self.mute = False
        self._known: set[Peer] = set()
        self.gate = Gate(self.server, self.keyring.get)
        self.gate.start()
        self.hub = Hub(self.address, gate=self.gate, on_message=self._on_message, listen=self.listen)
        self.hub.start()
        self.publisher = Publisher(f"ipc://{self.directory}/feed", gate=self.gate, listen=self.feed_listen)
        self.publisher.start()
        self.feed = Feed(self.epoch, self._publish)
        for key, row in self.rows.items():
            self.feed.set(key, row)
        self.alive = True
        self._ticking = asyncio.create_task(self._tick(), name="feed of the small coordinator")

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self._ticking.cancel()
            self.hub.close()
            self.publisher.close()
            self.gate.close()

    def set(self, key: str, row: GroupRow | OperationRow) -> None:
        self.rows[key] = row
        self.feed.set(key, row, urgent=True)

    def remove(self, key: str) -> None:
        del self.rows[key]
        self.feed.remove(key)

    def operation(self, id: str, state: OperationState, reason: str = "") -> None:
        self.set(f"op/{id}", OperationRow(id, "scale", "scale web to 3", "me", state, 0.0, reason=reason))

    def lose(self, count: int) -> None:
        """Publish rows that no subscriber receives."""
        works, self.feed_works = self.feed_works, False
        for number in range(count):
            self.feed.set("group/lost", GroupRow("lost", "sidecar", number), urgent=True)
        self.feed_works = works

    def forget_peers(self) -> None:
        self._known.clear()

    def _publish(self, frame: bytes) -> None:
        if self.feed_works:
            self.publisher.publish(frame)

    async def _tick(self) -> None:
        while True:
            self.feed.tick(time.monotonic(), time.time())
            await asyncio.sleep(TICK_S)

    def _on_message(self, peer: Peer, frame: bytes) -> None:
        message = wire.decode_to_coordinator(frame)
        if isinstance(message, ClientHello):
            self.hellos.append(message)
            self._known.add(peer)
            welcome = Welcome(self.epoch, UUID, "tiny", time.monotonic())
            self._send(peer, self.refuse_hello or self._version_refusal(message) or welcome)
        elif peer not in self._known:
            self._send(peer, WhoAreYou())
        elif isinstance(message, Request):
            self._on_request(peer, message)

    def _version_refusal(self, hello: ClientHello) -> Refused | None:
        if hello.major == PROTOCOL_MAJOR:
            return None
        return Refused(ExitCode.VERSION, f"You speak protocol {hello.major}, the coordinator {PROTOCOL_MAJOR}.")

    def _on_request(self, peer: Peer, request: Request) -> None:
        self.requests.append(request)
        if request.deadline_ct is not None and request.deadline_ct < time.monotonic():
            self._send(peer, ErrorReply(request.id, ExitCode.REFUSED, "Too late."))
            return
        spec = commands.COMMANDS[request.name]
        duplicate = request.id in self.executed
        if spec.mutates and not request.dry_run:
            self.executed.setdefault(request.id, request.name)
        if self.before_answer:
            self.before_answer(request)
        if self.mute or not self.alive:
            return
        if spec.mutates and request.dry_run:
            preview = Consent(Effect(starts=("web-1",)), Tier.REVERSIBLE, 60.0, {"group/web": "op"})
            self._send(peer, Reply(request.id, wire.raw(preview)))
        elif spec.mutates and request.consent is not None and request.consent.tier < Tier.REVERSIBLE:
            worse = Consent(Effect(starts=("web-1",)), Tier.REVERSIBLE, 60.0)
            self._send(peer, ErrorReply(request.id, ExitCode.CONFLICT, "It became worse.", consent=worse))
        elif spec.mutates:
            accepted = control_commands.Accepted(request.id, Effect(starts=("web-1",)), Tier.REVERSIBLE, duplicate)
            self._send(peer, Reply(request.id, wire.raw(accepted)))
        elif request.name == "snapshot":
            self._snapshot(peer, request)
        else:
            self._query(peer, request)

    def _snapshot(self, peer: Peer, request: Request) -> None:
        found, seq = self.feed.snapshot(wire.decode_as(control_commands.Snapshot, request.args).kinds)
        for key, value in found:
            self._send(peer, SnapshotRow(request.id, key, value))
        self._send(peer, SnapshotEnd(request.id, self.epoch, seq))

    def _query(self, peer: Peer, request: Request) -> None:
        if request.name == "show_operation":
            row = self.rows.get(f"op/{wire.decode_as(control_commands.ShowOperation, request.args).id}")
            if row is None:
                self._send(
                    peer, ErrorReply(request.id, ExitCode.UNKNOWN, "There is no such operation.", "agentrl events")
                )
            else:
                self._send(peer, Reply(request.id, wire.raw(row)))
        elif request.name == "knobs":
            self._send(peer, Reply(request.id, wire.raw([])))
        else:
            report = control_commands.StatusReport(run=RunRow(name="tiny", uuid="", state="running"))
            self._send(peer, Reply(request.id, wire.raw(report)))

    def _send(self, peer: Peer, message: Message) -> None:
        self.hub.send(peer, wire.encode(message))
