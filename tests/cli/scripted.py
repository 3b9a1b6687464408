"""A coordinator with scripted answers on the real sockets of a run, for tests of the command line and the console.

Hub, feed and messages are the real ones; only the rows of the run come from the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agentrl.config import paths
from agentrl.errors import AgentrlError
from agentrl.protocol import feed, messages, rows, wire
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.control_commands import Accepted, StatusReport
from agentrl.protocol.effects import Consent, Effect, EffectChangedError, Tier, tier_of
from agentrl.protocol.message_base import Args
from agentrl.protocol.tool_commands import JoinedRows
from agentrl.transport import addresses
from agentrl.transport.curve_keys import KeyPair
from agentrl.transport.hub import Hub, Peer
from agentrl.transport.publisher import Publisher
from agentrl.transport.tcp_authentication import Gate
from tests.waiting import PATIENCE_S

R = TypeVar("R", bound=rows.AnyRow)

Answer = Callable[[Args], Any]


class Scripted:
    """A run that is up for every client."""

    def __init__(self, home: Path, name: str = "demo") -> None:
        self.name = name
        self.state_dir = home / name
        self.state_dir.mkdir(parents=True, mode=0o700)
        self.uuid = str(uuid.uuid4())
        self.rows: dict[str, rows.AnyRow] = {
            "run": rows.RunRow(name, self.uuid, "running", started_at=time.time() - 90)
        }
        self.answers: dict[str, Answer] = {}
        self.effects: dict[str, Effect] = {}
        self.received: list[tuple[str, Args, bool]] = []
        """Name, arguments, and whether it was a preview."""
        self.permission = messages.Permission.ADMIN
        self.ends_as = rows.OperationState.SUCCEEDED
        self.listen: dict[str, str] = {}
        self.guarded: tuple[KeyPair, str, str] | None = None
        """Keys and tcp addresses of hub and feed, for clients with a key; every key is accepted."""
        self.silent = False
        """The feed sends nothing, but requests are answered."""
        self._held: dict[str, list[tuple[Peer, messages.Request]]] = {}
        """Requests that wait, by name."""
        self._seq = 0
        self._ready = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        run = {"name": name, "uuid": self.uuid, "run_dir": f"/runs/{name}", "created_at": time.time()}
        (self.state_dir / paths.RUN_FILE).write_text(json.dumps(run))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="scripted coordinator")

    def __enter__(self) -> Scripted:
        self._write_file()
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Die without a message. Does nothing after the first call."""
        if self._thread.is_alive():
            self._stop()
            self._thread.join(PATIENCE_S)

    def sent(self, name: str) -> list[Args]:
        """Requests without previews, and without commands that were refused because their effect had changed."""
        return [args for command, args, preview in self.received if command == name and not preview]

    def hold(self, name: str) -> None:
        """Let requests of a name wait; other requests and the feed continue."""
        self._held[name] = []

    def waiting(self, name: str) -> int:
        """The number of waiting requests."""
        return len(self._held.get(name, ()))

    def let_go(self, name: str) -> None:
        """Answer the waiting requests in order, and later ones at once."""
        self._loop.call_soon_threadsafe(self._answer_held, name)

    def _answer_held(self, name: str) -> None:
        for peer, request in self._held.pop(name):
            self._reply(peer, self._answered(request))

    def publish(self, key: str, row: rows.AnyRow) -> None:
        """Publish a row, from any thread."""
        self._loop.call_soon_threadsafe(self._publish, key, row)

    def _write_file(self) -> None:
        body = {
            "pid": os.getpid(),
            "address": addresses.hub_address(self.uuid),
            "feed": addresses.feed_address(self.uuid),
            "metrics": addresses.metrics_address(self.uuid),
            **self.listen,
        }
        (self.state_dir / "coordinator.json").write_text(json.dumps(body))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._stop = lambda: self._loop.call_soon_threadsafe(ended.set)
        keys = self.guarded[0] if self.guarded else None
        gate = Gate(keys, lambda public: "ann")
        gate.start()
        self._hub = Hub(addresses.hub_address(self.uuid), gate=gate, on_message=self._on_message)
        self._feed = Publisher(addresses.feed_address(self.uuid), gate=gate)
        self._hub.start()
        self._feed.start()
        if self.guarded:
            self._hub.listen(self.guarded[1])
            self._feed.listen(self.guarded[2])
        self._ready.set()
        while not ended.is_set():
            beat = feed.FeedBeat("one", self._seq, time.monotonic(), time.time())
            if not self.silent:
                self._feed.publish(wire.encode(beat))
            try:
                await asyncio.wait_for(ended.wait(), 0.1)
            except TimeoutError:
                continue
        self._hub.close()
        self._feed.close()
        gate.close()

    def _publish(self, key: str, row: rows.AnyRow) -> None:
        self._seq += 1
        self.rows[key] = row
        self._feed.publish(wire.encode(feed.FeedRow("one", self._seq, key, wire.raw(row))))

    def _on_message(self, peer: Peer, frame: bytes) -> None:
        message = wire.decode_to_coordinator(frame)
        match message:
            case messages.ClientHello():
                self._reply(peer, self._welcome())
            case messages.Request(name="snapshot"):
                for key, row in self.rows.items():
                    self._reply(peer, messages.SnapshotRow(message.id, key, wire.raw(row)))
                self._reply(peer, messages.SnapshotEnd(message.id, "one", self._seq))
            case messages.Request() if message.name in self._held:
                self._held[message.name].append((peer, message))
            case messages.Request():
                self._reply(peer, self._answered(message))

    def _welcome(self) -> messages.Welcome:
        return messages.Welcome("one", self.uuid, self.name, time.monotonic(), permission=self.permission)

    def _reply(self, peer: Peer, message: messages.ToClient) -> None:
        self._hub.send(peer, wire.encode(message))

    def _answered(self, request: messages.Request) -> messages.Reply | messages.ErrorReply:
        args = wire.decode_as(COMMANDS[request.name].args, request.args)
        self.received.append((request.name, args, request.dry_run))
        try:
            return messages.Reply(request.id, wire.raw(self._answer(request, args)))
        except AgentrlError as error:
            consent = None
            if isinstance(error, EffectChangedError):
                self.received.pop()
                consent = error.consent
            return messages.ErrorReply(request.id, int(error.exit_code), error.message, error.hint, consent)

    def _answer(self, request: messages.Request, args: Args) -> Any:
        if request.name in self.answers:
            return self.answers[request.name](args)
        if request.name == "status":
            return self._report()
        if request.name == "show_operation":
            return self.rows[f"op/{args.id}"]
        if not COMMANDS[request.name].mutates:
            return JoinedRows([]) if COMMANDS[request.name].by_all else []
        effect = self.effects.get(request.name, Effect())
        preview = Consent(effect, tier_of(effect), 0.0)
        if request.dry_run:
            return preview
        if request.consent and request.consent.tier < preview.tier:
            raise EffectChangedError("It became worse.", consent=preview)
        ended = self.ends_as.ended
        row = rows.OperationRow(
            request.id, request.name, request.name, "me", self.ends_as, time.time(), time.time() if ended else 0.0
        )
        self._publish(f"op/{request.id}", row)
        return Accepted(request.id, effect, tier_of(effect))

    def _report(self) -> StatusReport:
        def all_of(kind: type[R]) -> tuple[R, ...]:
            return tuple(row for row in self.rows.values() if isinstance(row, kind))

        run = self.rows["run"]
        assert isinstance(run, rows.RunRow)
        return StatusReport(
            run=run,
            groups=all_of(rows.GroupRow),
            units=all_of(rows.UnitRow),
            hosts=all_of(rows.HostRow),
            alerts=all_of(rows.AlertRow),
            operations=all_of(rows.OperationRow),
        )


DESTRUCTIVE = Effect(drains=("web-1",), loses=("14 records are lost",))
DISRUPTIVE = Effect(drains=("web-1",))
assert tier_of(DESTRUCTIVE) is Tier.DESTRUCTIVE
assert tier_of(DISRUPTIVE) is Tier.DISRUPTIVE
