"""Where other hosts reach the coordinator, on real sockets: ports that are taken, given free, changed, given up."""

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
from agentrl.transport.zap import Gate
from tests.ports import free_triplet
from tests.waiting import aeventually


class Doors:
    def __init__(self, folder: Path) -> None:
        self.gate = Gate(new_keypair(), lambda public: None)
        self.gate.start()
        self.hub = Hub(f"ipc://{folder}/hub", gate=self.gate, on_message=lambda peer, frame: None)
        self.feed = Publisher(f"ipc://{folder}/feed", gate=self.gate)
        self.metrics = Publisher(f"ipc://{folder}/metrics", gate=self.gate)
        for each in (self.hub, self.feed, self.metrics):
            each.start()
        self.changes: list[tuple[str, str]] = []
        self.listening = TcpListener(self.hub, self.feed, self.metrics, self._changed)

    def _changed(self) -> None:
        self.changes.append((self.listening.address, self.listening.trouble))

    def close(self) -> None:
        for each in (self.listening, self.hub, self.feed, self.metrics, self.gate):
            each.close()


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    with closing(Doors(tmp_path)) as doors:
        yield doors


@pytest.fixture
def listen() -> str:
    return f"tcp://127.0.0.1:{free_triplet()}"


@pytest.fixture
def taken(listen: str) -> Iterator[socket.socket]:
    """The last of the three ports is somebody else's."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(listen.rpartition(":")[2]) + 2))
        other.listen()
        yield other


def wants(listen: str) -> RunConfig:
    return RunConfig.model_validate({"name": "my-run", "coordinator": {"listen": listen}})


async def all_free(listen: str) -> None:
    await aeventually(lambda: not any(map(why_not_free, tcp_triplet(listen))), what="all three ports to be free")


async def test_all_three_ports_are_open_or_none(doors: Doors, listen: str) -> None:
    doors.listening.check(wants(listen))
    assert not any(map(why_not_free, tcp_triplet(listen))), "a check leaves nothing behind"
    doors.listening.configure(wants(listen))
    assert all(map(why_not_free, tcp_triplet(listen)))
    doors.listening.check(wants(listen))
    doors.listening.configure(wants(listen))
    doors.listening.configure(wants(""))
    await all_free(listen)
    assert doors.changes == [(listen, ""), ("", "")]


async def test_another_address_is_taken_up_at_once(doors: Doors, listen: str) -> None:
    doors.listening.configure(wants(listen))
    other = f"tcp://127.0.0.1:{free_triplet()}"
    doors.listening.configure(wants(other))
    assert all(map(why_not_free, tcp_triplet(other)))
    await all_free(listen)
    assert doors.listening.address == other


async def test_ports_that_overlap_the_present_ones_are_no_obstacle(
    doors: Doors, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_listener, "RETRY_S", 0.05)
    doors.listening.configure(wants(listen))
    everywhere = listen.replace("127.0.0.1", "0.0.0.0")
    doors.listening.check(wants(everywhere))
    doors.listening.configure(wants(everywhere))
    await aeventually(lambda: doors.listening.address == everywhere)


@pytest.mark.usefixtures("taken")
async def test_a_taken_port_is_refused_beforehand(doors: Doors, listen: str) -> None:
    with pytest.raises(ConfigError, match="already in use") as taken:
        doors.listening.check(wants(listen))
    assert "another port" in taken.value.hint
    with pytest.raises(ConfigError) as elsewhere:
        doors.listening.check(wants("tcp://203.0.113.7:7400"))
    assert "another port" not in elsewhere.value.hint
    assert "an address of this host" in elsewhere.value.hint


async def test_a_port_that_was_taken_meanwhile_is_tried_again(
    doors: Doors, listen: str, taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_listener, "RETRY_S", 0.05)
    doors.listening.configure(wants(listen))
    assert doors.listening.address == ""
    assert "already in use" in doors.listening.trouble
    taken.close()
    await aeventually(lambda: doors.listening.address == listen)
    assert doors.listening.trouble == ""
    assert doors.changes[-1] == (listen, "")
    assert len(doors.changes) == 2, "trouble is told once"
