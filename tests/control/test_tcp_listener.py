"""The coordinator opens its tcp sockets together, on real ports that are taken, released and changed."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.config.run import RunConfig
from agentrl.control import tcp_listener
from agentrl.control.tcp_listener import TcpListener
from agentrl.errors import ConfigError
from agentrl.transport.addresses import tcp_triplet, why_not_free
from agentrl.transport.curve_keys import new_keypair
from agentrl.transport.hub import Hub
from agentrl.transport.publisher import Publisher
from agentrl.transport.tcp_authentication import Gate
from tests.ports import free_triplet
from tests.waiting import aeventually


class Sockets:
    def __init__(self, folder: Path) -> None:
        self.gate = Gate(new_keypair(), lambda public: None)
        self.gate.start()
        self.hub = Hub(f"ipc://{folder}/hub", gate=self.gate, on_message=lambda peer, frame: None)
        self.feed = Publisher(f"ipc://{folder}/feed", gate=self.gate)
        self.metrics = Publisher(f"ipc://{folder}/metrics", gate=self.gate)
        for each in (self.hub, self.feed, self.metrics):
            each.start()
        self.changes: list[tuple[str, str]] = []
        self.listener = TcpListener(self.hub, self.feed, self.metrics, self._changed)

    def _changed(self) -> None:
        self.changes.append((self.listener.address, self.listener.trouble))

    def close(self) -> None:
        for each in (self.listener, self.hub, self.feed, self.metrics, self.gate):
            each.close()


@pytest.fixture
async def sockets(tmp_path: Path) -> AsyncIterator[Sockets]:
    with closing(Sockets(tmp_path)) as sockets:
        yield sockets


@pytest.fixture
def listen() -> str:
    return f"tcp://127.0.0.1:{free_triplet()}"


@pytest.fixture
def taken(listen: str) -> Iterator[socket.socket]:
    """Another program has the last of the three ports."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(listen.rpartition(":")[2]) + 2))
        other.listen()
        yield other


def wants(listen: str) -> RunConfig:
    return RunConfig.model_validate({"name": "my-run", "coordinator": {"listen": listen}})


async def all_free(listen: str) -> None:
    await aeventually(lambda: not any(map(why_not_free, tcp_triplet(listen))), what="all three ports to be free")


async def test_all_three_ports_are_open_or_none(sockets: Sockets, listen: str) -> None:
    sockets.listener.check(wants(listen))
    assert not any(map(why_not_free, tcp_triplet(listen))), "a check opens no port"
    sockets.listener.configure(wants(listen))
    assert all(map(why_not_free, tcp_triplet(listen)))
    sockets.listener.check(wants(listen))
    sockets.listener.configure(wants(listen))
    sockets.listener.configure(wants(""))
    await all_free(listen)
    assert sockets.changes == [(listen, ""), ("", "")]


async def test_new_address_is_in_use_at_once(sockets: Sockets, listen: str) -> None:
    sockets.listener.configure(wants(listen))
    other = f"tcp://127.0.0.1:{free_triplet()}"
    sockets.listener.configure(wants(other))
    assert all(map(why_not_free, tcp_triplet(other)))
    await all_free(listen)
    assert sockets.listener.address == other


async def test_new_address_may_use_the_present_ports(
    sockets: Sockets, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_listener, "RETRY_S", 0.05)
    sockets.listener.configure(wants(listen))
    everywhere = listen.replace("127.0.0.1", "0.0.0.0")
    sockets.listener.check(wants(everywhere))
    sockets.listener.configure(wants(everywhere))
    await aeventually(lambda: sockets.listener.address == everywhere)


@pytest.mark.usefixtures("taken")
async def test_configuration_with_a_taken_port_is_refused(sockets: Sockets, listen: str) -> None:
    with pytest.raises(ConfigError, match="already in use") as taken:
        sockets.listener.check(wants(listen))
    assert "another port" in taken.value.hint
    with pytest.raises(ConfigError) as elsewhere:
        sockets.listener.check(wants("tcp://203.0.113.7:7400"))
    assert "another port" not in elsewhere.value.hint
    assert "an address of this host" in elsewhere.value.hint


async def test_port_that_is_taken_after_a_restart_is_tried_again(
    sockets: Sockets, listen: str, taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_listener, "RETRY_S", 0.05)
    sockets.listener.configure(wants(listen))
    assert sockets.listener.address == ""
    assert "already in use" in sockets.listener.trouble
    taken.close()
    await aeventually(lambda: sockets.listener.address == listen)
    assert sockets.listener.trouble == ""
    assert sockets.changes[-1] == (listen, "")
    assert len(sockets.changes) == 2, "the problem is reported once"
