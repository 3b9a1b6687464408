"""A real hub and publishers on real sockets, local and on tcp."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentrl.transport.curve_keys import ClientKey, KeyPair, new_keypair
from agentrl.transport.dealer import Dealer
from agentrl.transport.hub import Hub, Peer
from agentrl.transport.publisher import Publisher, Subscriber
from agentrl.transport.tcp_authentication import Gate
from tests.ports import free_triplet
from tests.waiting import aeventually


class Dialled:
    """A dealer or subscriber that records its events."""

    def __init__(self, kind: type[Dealer] | type[Subscriber], address: str, key: ClientKey | None = None) -> None:
        self.got: list[bytes] = []
        self.story: list[str] = []
        self.refusals: list[str] = []
        self.link = kind(
            address,
            key=key,
            on_message=self.got.append,
            on_connected=lambda: self.story.append("connected"),
            on_disconnected=lambda: self.story.append("disconnected"),
            on_refused=self.refusals.append,
        )
        self.link.start()

    def send(self, frame: bytes) -> bool:
        assert isinstance(self.link, Dealer)
        return self.link.send(frame)

    async def connected(self) -> Dialled:
        await aeventually(lambda: self.link.connected, what="a connection")
        return self

    async def hears(self, frame: bytes) -> None:
        await aeventually(lambda: frame in self.got, what=f"a message {frame[:40]!r}")


class House:
    """The sockets of a coordinator. The hub answers `X` with `re:X`, and does not answer messages in `silent`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = new_keypair()
        self.keyring: dict[str, str] = {}
        port = free_triplet()
        self.hub_tcp = f"tcp://127.0.0.1:{port}"
        self.feed_tcp = f"tcp://127.0.0.1:{port + 1}"
        self.hub_ipc, self.feed_ipc = f"ipc://{directory}/hub", f"ipc://{directory}/feed"
        self.received: list[tuple[Peer, bytes]] = []
        self.gone: list[Peer] = []
        self.links: list[Dialled] = []
        self.subscriptions = 0
        self.refused_pids: set[int] = set()
        self.echo = True
        self.open()

    def open(self) -> None:
        self.gate = Gate(self.server, self.keyring.get)
        self.gate.start()
        self.hub = Hub(
            self.hub_ipc, gate=self.gate, on_message=self._on_message, on_gone=self.gone.append, listen=self.hub_tcp
        )
        self.hub.start()
        self.publisher = Publisher(
            self.feed_ipc,
            gate=self.gate,
            listen=self.feed_tcp,
            on_subscribed=self._count,
            may_read=lambda pid, uid: pid not in self.refused_pids,
        )
        self.publisher.start()

    def close(self) -> None:
        self.hub.close()
        self.publisher.close()
        self.gate.close()

    def close_all(self) -> None:
        for each in self.links:
            each.link.close()
        self.close()

    def admit(self, name: str, pair: KeyPair | None = None, *, feed: bool = False) -> ClientKey:
        pair = pair or new_keypair()
        self.keyring[pair.public] = name
        return self.key(name, pair, feed=feed)

    def key(self, name: str, pair: KeyPair, *, server: str = "", feed: bool = False) -> ClientKey:
        address = self.feed_tcp if feed else self.hub_tcp
        return ClientKey(name, pair.public, pair.secret, server or self.server.public, address)

    def dial(self, key: ClientKey | None = None, address: str = "") -> Dialled:
        return self._dial(Dealer, key, address or (key.address if key else self.hub_ipc))

    def subscribe(self, key: ClientKey | None = None) -> Dialled:
        return self._dial(Subscriber, key, key.address if key else self.feed_ipc)

    def _dial(self, kind: type[Dealer] | type[Subscriber], key: ClientKey | None, address: str) -> Dialled:
        self.links.append(Dialled(kind, address, key))
        return self.links[-1]

    def _on_message(self, peer: Peer, frame: bytes) -> None:
        self.received.append((peer, frame))
        if self.echo:
            self.hub.send(peer, b"re:" + frame)

    def _count(self) -> None:
        self.subscriptions += 1


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose name is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="arl") as directory:
        yield Path(directory)


@pytest.fixture
async def house(short_dir: Path) -> AsyncIterator[House]:
    house = House(short_dir)
    yield house
    house.close_all()


@pytest.fixture(autouse=True)
def no_loop_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if a callback raises; asyncio would only log it."""
    yield
    broken = [each.getMessage() for each in caplog.get_records("call") if each.name == "asyncio"]
    assert not [each for each in broken if "xception" in each], broken
