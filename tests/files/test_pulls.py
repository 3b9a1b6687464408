"""Files between hosts: real tunnels with TLS, a file service and a directory of its own for each host."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from agentrl.files import file_service, frames, pieces, pulls
from agentrl.files.cache import Cache
from agentrl.files.deltas import Delta, write_delta
from agentrl.files.file_service import FileService
from agentrl.files.frames import FilesError, WrongListError
from agentrl.files.peers import Peers
from agentrl.files.pieces import Content, content_of
from agentrl.files.unit_files import UnitFiles, socket_for_hosts, socket_for_units
from tests.tunnels.hosts import Hosts
from tests.waiting import aeventually

PIECES, PIECE_BYTES = 6, 1 << 16
SIZE = PIECES * PIECE_BYTES - 1234
MANY = 40
"""The number of pieces of a file in tests that count pieces approximately."""
VERSION = "weights/v000001"


class FileHosts(Hosts):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.services: dict[str, FileService] = {}  # type: ignore[assignment]
        self.caches: dict[str, Cache] = {}
        self.peers: dict[str, Peers] = {}
        self.serving: dict[str, list[asyncio.Server]] = {}
        self.units: list[UnitFiles] = []
        self.sent: dict[str, int] = {}
        self.connections: dict[str, list[asyncio.Task[None]]] = {}

    def run_dir(self, host: str) -> Path:
        return self._folder / f"dir-{host}"

    async def add(self, host: str) -> None:
        await super().add(host)
        self.run_dir(host).mkdir()
        self.caches[host] = Cache(self.run_dir(host), host)
        others = lambda: frozenset(self.tunnels) - {host}  # noqa: E731
        self.peers[host] = Peers(self.way(host), others)
        service = FileService(host, "r", self.run_dir(host), self.caches[host], self.peers[host])
        service.data_host = "a"
        self.services[host] = service
        await self.serve_files(host, service.serve_host)
        self.serving[host].append(
            await asyncio.start_unix_server(
                self._counted(host, service.serve_unit), socket_for_units(self.entrance(host))
            )
        )

    async def serve_files(self, host: str, serve: Callable[..., Awaitable[None]]) -> None:
        for server in self.serving.pop(host, []):
            server.close()
        path = socket_for_hosts(self.entrance(host))
        path.unlink(missing_ok=True)
        self.serving[host] = [await asyncio.start_unix_server(self._counted(host, serve), path)]

    def _counted(self, host: str, serve: Callable[..., Awaitable[None]]):  # type: ignore[no-untyped-def]
        async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.connections.setdefault(host, []).append(task)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serve(reader, writer)
            writer.transport.abort()

        return begin

    def end_connections(self, host: str) -> None:
        for task in self.connections.get(host, []):
            task.cancel()

    def unit(self, host: str) -> UnitFiles:
        self.units.append(UnitFiles(self.entrance(host)))
        return self.units[-1]

    async def close(self) -> None:
        for unit in self.units:
            unit.close()
        for service in self.services.values():
            await service.close()
        for host, servers in self.serving.items():
            self.end_connections(host)
            for server in servers:
                server.close()
        self.services.clear()
        for tunnel in self.tunnels.values():
            await tunnel.close()


@pytest.fixture
async def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FileHosts]:
    monkeypatch.setattr(pieces, "SMALLEST_BYTES", PIECE_BYTES)
    made = FileHosts(tmp_path)
    for host in ("a", "b", "c"):
        await made.add(host)
    yield made
    await made.close()


def publish(hosts: FileHosts, *, size: int = SIZE, directory: str = VERSION, host: str = "a") -> dict[str, Content]:
    folder = hosts.run_dir(host) / directory
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(random.Random(directory).randbytes(size))
    (folder / "config.json").write_text("{}")
    return {name: content_of(folder / name) for name in ("model.safetensors", "config.json")}


def same(hosts: FileHosts, host: str, directory: str = VERSION) -> bool:
    one, other = (hosts.run_dir(name) / directory / "model.safetensors" for name in ("a", host))
    return one.read_bytes() == other.read_bytes()


async def test_weights_reach_all_hosts_and_their_writer_sends_them_about_once(hosts: FileHosts) -> None:
    files = publish(hosts, size=MANY * PIECE_BYTES)
    sent = count_pieces(hosts, "a")
    await asyncio.gather(*(hosts.unit(host).bring(VERSION, files) for host in ("b", "c")))
    assert same(hosts, "b")
    assert same(hosts, "c")
    # Some requests cross. If the hosts did not share, host a would send 2 * MANY pieces.
    assert sent[files["model.safetensors"].blake2b] <= 1.5 * MANY

    # A host that comes later does not need the host that wrote the weights.
    hosts.serving["a"][0].close()
    socket_for_hosts(hosts.entrance("a")).unlink(missing_ok=True)
    hosts.end_connections("a")
    await hosts.add("d")
    await hosts.unit("d").bring(VERSION, files)
    assert same(hosts, "d")


def count_pieces(hosts: FileHosts, host: str) -> dict[str, int]:
    sent: dict[str, int] = {}
    service = hosts.services[host]
    send = service._send

    async def counted(question: frames.SendPiece, writer: asyncio.StreamWriter) -> None:
        sent[question.content.blake2b] = sent.get(question.content.blake2b, 0) + 1
        await send(question, writer)

    service._send = counted  # type: ignore[method-assign]
    return sent


async def test_a_host_with_the_version_before_gets_the_difference_and_others_the_whole(hosts: FileHosts) -> None:
    name, newer = "model.safetensors", "weights/v000002"
    before, after = publish(hosts), publish(hosts, directory=newer)
    former, now = (hosts.run_dir("a") / directory / name for directory in (VERSION, newer))
    now.write_bytes(former.read_bytes()[:-100] + bytes(100))
    after[name] = content_of(now)

    def difference(directory: str) -> Delta:
        file = hosts.run_dir("a") / directory / f"{name}.delta"
        content = write_delta(former, now, file, most_bytes=SIZE)
        assert content is not None
        return Delta(before[name], file.name, content)

    sent = count_pieces(hosts, "a")
    deltas = {name: difference(newer)}
    for host in ("b", "c"):
        unit = hosts.unit(host)
        if host == "b":
            await unit.bring(VERSION, before)
        sent.clear()
        await unit.bring(newer, after, deltas)
        assert same(hosts, host, newer)
        # Host c may get missing pieces from b.
        assert sent.get(deltas[name].content.blake2b, 0) == (host == "b")
        assert (after[name].blake2b in sent) <= (host == "c")
    # A delta that gives the wrong file is not used, and no piece of its result is kept.
    third, wrong = "weights/v000003", dict(deltas)
    (hosts.run_dir("a") / third).mkdir()
    (hosts.run_dir("a") / third / name).write_bytes(random.Random(3).randbytes(SIZE))
    (hosts.run_dir("a") / third / f"{name}.delta").write_bytes((now.parent / f"{name}.delta").read_bytes())
    await hosts.unit("b").bring(third, {name: content_of(hosts.run_dir("a") / third / name)}, wrong)
    assert same(hosts, "b", third)


async def test_corrupt_pieces_and_a_source_that_dies_are_replaced_by_another_source(
    hosts: FileHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "AGAIN_S", 0.05)
    files = publish(hosts)
    await hosts.unit("b").bring(VERSION, files)
    # From now on b flips a byte of each piece.
    whole = hosts.caches["b"].whole(files["model.safetensors"])
    assert whole is not None
    whole.chmod(0o600)
    with whole.open("r+b") as opened:
        for number in range(PIECES):
            opened.seek(number * PIECE_BYTES)
            opened.write(b"\0\0\0\0\0\0\0\1")
    # Host a dies during its second piece, and comes back later.
    sent = 0

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            question = msgspec.json.decode(await frames.read(reader), type=frames.FromHost)
            if isinstance(question, frames.SendPiece):
                sent += 1
                if sent == 2:
                    frames.write(writer, frames.Piece(PIECE_BYTES))
                    writer.write(b"x" * 1000)
                    await writer.drain()
                    writer.transport.abort()
                    await hosts.serve_files("a", hosts.services["a"].serve_host)
                    hosts.end_connections("a")
                    return
                await hosts.services["a"]._send(question, writer)
            else:
                assert isinstance(question, frames.AskPieces)
                frames.write(writer, hosts.services["a"]._pieces(question))
            await writer.drain()

    await hosts.serve_files("a", dies)
    await hosts.unit("c").bring(VERSION, files)
    assert same(hosts, "c")
    assert sent >= 2, "host a did not die"
    assert not same(hosts, "b"), "no piece of host b was corrupt"


async def test_versions_after_the_first_open_no_further_connections(
    hosts: FileHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_service, "ANSWERS_WITHIN_S", 0.05)
    unit, opened = hosts.unit("c"), []
    for number in range(1, 5):
        version = f"weights/v{number:06d}"
        await unit.bring(version, publish(hosts, directory=version))
        # All long polls for news of that version have been answered.
        await aeventually(lambda: hosts.peers["c"].is_idle, what="every connection to be idle")
        opened.append(sum(len(hosts.connections[host]) for host in ("a", "b")))
    assert opened[0] == opened[-1] > 0


async def test_connection_whose_piece_was_abandoned_is_not_used_again(hosts: FileHosts) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await frames.read(reader)
            asked.set()
            await goes_on.wait()
            frames.write(writer, frames.Piece(bytes=8))
            writer.write(b"12345678")
            await writer.drain()

    await hosts.serve_files("a", slow)
    peers = hosts.peers["c"]

    async def piece() -> bytes:
        async with peers.connection("a") as connection:
            return await connection.piece(frames.SendPiece("x", Content(8, ""), 0))

    abandoned = asyncio.create_task(piece())
    await asked.wait()
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    goes_on.set()
    await aeventually(lambda: peers.is_idle, what="every connection to be idle")
    assert [await piece(), await piece()] == [b"12345678"] * 2


async def test_pull_goes_on_where_a_former_process_ended(hosts: FileHosts) -> None:
    files = publish(hosts)
    content = files["model.safetensors"]
    part, _ = hosts.caches["c"].begin(content)
    data = (hosts.run_dir("a") / VERSION / "model.safetensors").read_bytes()
    with part.open("r+b") as opened:
        opened.write(data[: 4 * PIECE_BYTES])
    sent = count_pieces(hosts, "a")
    await hosts.unit("c").bring(VERSION, files)
    assert same(hosts, "c")
    assert sent[content.blake2b] == PIECES - 4


async def test_full_cache_drops_the_oldest_and_never_what_a_unit_holds(hosts: FileHosts) -> None:
    versions = [f"weights/v{number:06d}" for number in range(1, 5)]
    files = {version: publish(hosts, directory=version, size=PIECE_BYTES) for version in versions}
    hosts.caches["c"].limit_bytes = int(2.5 * PIECE_BYTES)
    unit = hosts.unit("c")
    for version in versions[:2]:
        await unit.bring(version, files[version])
    with pytest.raises(FilesError, match=r"Host c has no room for 64 KiB of the run.*hosts\.c\.cache"):
        await unit.bring(versions[2], files[versions[2]])
    assert same(hosts, "c", versions[0])
    assert same(hosts, "c", versions[1])

    await unit.keep(versions[1:2])
    await unit.bring(versions[2], files[versions[2]])
    assert same(hosts, "c", versions[2])
    assert not (hosts.run_dir("c") / versions[0] / "model.safetensors").exists()
    # A new process finds the cached files, and knows which of them it may remove.
    again = Cache(hosts.run_dir("c"), "c", int(1.5 * PIECE_BYTES))
    again.begin(files[versions[3]]["model.safetensors"])
    assert not list((hosts.run_dir("c") / "weights").glob("*/model.safetensors"))


async def test_damaged_lists_and_paths_are_refused_with_one_sentence(
    hosts: FileHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "WITHOUT_A_SOURCE_S", 0.3)
    monkeypatch.setattr(pulls, "AGAIN_S", 0.05)
    files = publish(hosts)
    content = files["model.safetensors"]
    short = msgspec.structs.replace(content, pieces=content.pieces[:-1])
    unit = hosts.unit("c")
    with pytest.raises(WrongListError, match="its list has 5 of 6 pieces"):
        await unit.bring(VERSION, {"model.safetensors": short})
    for directory, name in (("../a", "x"), ("/etc", "passwd"), (VERSION, "../../x")):
        with pytest.raises(WrongListError):
            await unit.bring(directory, {name: content})
    other = msgspec.structs.replace(content, pieces=("0" * 32, *content.pieces[1:]))
    with pytest.raises(FilesError, match=r"\d of 6 pieces came \(a: what it sent as piece 0 is not that of the list"):
        await unit.bring(VERSION, {"model.safetensors": other})
    # Of a host's own files only weights, checkpoints and what the run file names are read.
    secret = hosts.run_dir("a") / "secret"
    secret.write_text("token")
    (hosts.run_dir("a") / "weights" / "link").symlink_to(secret)
    for path in ("secret", "weights/../secret", "weights/link", "", ".", "weights/\0"):
        assert hosts.services["a"]._sources.find(path, content_of(secret)) is None


async def test_unit_that_leaves_ends_the_pull_that_only_it_waits_for(hosts: FileHosts) -> None:
    files = {"x": Content(PIECE_BYTES, "0" * 128, ("0" * 32,))}
    unit = hosts.unit("c")
    waiting = asyncio.create_task(unit.bring(VERSION, files))
    await aeventually(lambda: hosts.services["c"]._pulls, what="a pull")
    waiting.cancel()
    await aeventually(lambda: not hosts.services["c"]._pulls, what="the end of the pull")
    with pytest.raises(asyncio.CancelledError):
        await waiting
