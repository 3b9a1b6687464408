"""Tunnels between hosts: which connections pass, and which are refused with which sentence."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, ProtocolError
from agentrl.http.http_client import CannotConnectError, HttpClient
from agentrl.http.run_hosts import NoWayError, Way, known_as
from agentrl.tunnels.authority import FILE, Authority
from agentrl.tunnels.ends import BUFFER_BYTES, End
from agentrl.tunnels.tunnel import forward_path
from tests.tunnels.hosts import Hosts
from tests.waiting import aeventually

SIZE = 3 << 20
LARGE = 64 << 20
"""More bytes than all sockets on the way can buffer."""


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    made = Hosts(tmp_path)
    for host in ("a", "B.example"):
        await made.add(host)
    yield made
    await made.close()


async def refusal(hosts: Hosts, port: int, there: str = "B.example") -> str:
    with pytest.raises(NoWayError) as refused:
        await hosts.way("a").open(there, port)
    return str(refused.value)


async def back_and_forth(end: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=end)
    sent = bytes(range(256)) * (SIZE // 256)
    writer.write(sent)
    assert await reader.readexactly(SIZE) == sent
    writer.close()
    await writer.wait_closed()


async def test_bytes_pass_in_both_directions(hosts: Hosts) -> None:
    port = await hosts.echo()
    for here, there in (("a", "B.example"), ("B.example", "a"), ("a", "a")):
        await back_and_forth(await hosts.way(here).open(there, port))


async def test_slow_reader_gets_all_and_the_tunnels_keep_a_buffer_at_most(hosts: Hosts) -> None:
    got, kept = bytearray(), 0

    async def ends() -> list[End]:
        return [end for tunnel in hosts.tunnels.values() for end in tunnel.ends]

    async def all_wait() -> bool:
        return sum(end.waits for end in await ends()) >= 2

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal kept
        await aeventually(all_wait, what="both tunnels to read no more")
        kept = max(end.kept_bytes for end in await ends())
        while piece := await reader.read(1 << 20):
            got.extend(piece)
        writer.close()

    port = await hosts.serve(serve)
    hosts.open_ports.add(port)
    end = await hosts.way("a").open("B.example", port)
    sent = bytes(range(256)) * (LARGE // 256)
    await asyncio.get_running_loop().sock_sendall(end, sent)
    end.close()
    await asyncio.gather(*hosts.calls)
    assert got == sent
    # A full buffer still takes the bytes that were read before it was full.
    assert 0 < kept <= 3 * BUFFER_BYTES


async def test_forward_leads_to_one_port(hosts: Hosts) -> None:
    port = await hosts.echo()
    await hosts.tunnels["a"].forward("mongo", "B.example", port)
    path = forward_path(hosts.entrance("a"), "mongo")
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(path))
        end.setblocking(False)
        await back_and_forth(end)
    for each in (path, hosts.entrance("a")):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600


async def test_http_calls_reach_a_host_by_its_name(hosts: Hosts) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    port = await hosts.serve(serve)
    client = HttpClient(f"http://B.example:{port}", {}, way=hosts.way("a"))
    try:
        with pytest.raises(CannotConnectError, match="No process of the run listens"):
            async with client.ask("GET", "/"):
                pass
        hosts.open_ports.add(port)
        async with client.ask("GET", "/") as reply:
            assert await reply.read() == b"ok"
        await client.close()
        # A caller on that host needs no tunnel.
        client = HttpClient(f"http://B.example:{port}", {}, way=Way(Path("/no/tunnel"), "B.example"))
        async with client.ask("GET", "/") as reply:
            assert await reply.read() == b"ok"
    finally:
        await client.close()


async def test_service_is_named_by_its_host_only_in_a_run_with_tunnels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_as("http://127.0.0.1:7") == "http://127.0.0.1:7"
    monkeypatch.setenv("AGENTRL_TUNNEL", "/t.sock")
    monkeypatch.setenv("AGENTRL_HOST", "B.example")
    assert known_as("http://127.0.0.1:7") == "http://B.example:7"


async def test_port_without_a_process_of_the_run_is_refused(hosts: Hosts) -> None:
    assert "No process of the run listens on port '22'" in await refusal(hosts, 22)


async def test_unknown_host_and_wrong_lines_are_refused(hosts: Hosts) -> None:
    assert await refusal(hosts, 1, "c") == "Host c has no tunnel now."
    reader, writer = await asyncio.open_unix_connection(str(hosts.entrance("a")))
    writer.write(b"\xff\xfe nonsense\n")
    assert (await reader.readline()).startswith(b"no: ")
    writer.close()


@pytest.mark.parametrize("port", ["0", "65536", "99999999999", "٣", "-1", ""])
async def test_a_line_without_a_port_gets_a_sentence_at_the_own_host_and_at_another(hosts: Hosts, port: str) -> None:
    for host in ("a", "b"):
        reader, writer = await asyncio.open_unix_connection(str(hosts.entrance("a")))
        writer.write(f"{host} {port}\n".encode())
        assert await reader.readline() == b"no: The line must be HOST PORT.\n"
        writer.close()


async def test_host_that_answers_at_the_address_of_another_is_refused(hosts: Hosts) -> None:
    port = await hosts.echo()
    hosts.tell(c=hosts.address("B.example"))
    assert "is not host c of this run" in await refusal(hosts, port, "c")


Spoil = Callable[[Hosts], Awaitable[None]]


async def other_run_there(hosts: Hosts) -> None:
    folder = hosts.entrance("a").parent / "other"
    folder.mkdir()
    other = Authority(folder, "another")
    hosts.tunnels["B.example"].configure(*hosts.contexts("B.example", other), {"a": ""})


async def other_run_here(hosts: Hosts) -> None:
    """The host trusts the right authority, but shows a certificate of another one."""
    folder = hosts.entrance("a").parent / "other"
    folder.mkdir()
    coming, _ = hosts.contexts("a")
    key = hosts.keys["a"]
    _, going = key.contexts(Authority(folder, "another").issue("a", key.request()), hosts.authority.trusted)
    hosts.tunnels["a"].configure(coming, going, {"B.example": hosts.address("B.example")})


async def expired_there(hosts: Hosts) -> None:
    hosts.tunnels["B.example"].configure(*hosts.contexts("B.example", days=-0.1), {"a": ""})


async def expired_here(hosts: Hosts) -> None:
    peers = {"B.example": hosts.address("B.example")}
    hosts.tunnels["a"].configure(*hosts.contexts("a", days=-0.1), peers)


async def forgotten(hosts: Hosts) -> None:
    """The coordinator has forgotten host a."""
    hosts.tunnels["B.example"].configure(*hosts.contexts("B.example"), {"B.example": ""})


@pytest.mark.parametrize("spoil", [other_run_there, other_run_here, expired_there, expired_here, forgotten])
async def test_wrong_certificates_are_refused(hosts: Hosts, spoil: Spoil) -> None:
    port = await hosts.echo()
    await spoil(hosts)
    assert "B.example" in await refusal(hosts, port)


async def test_plain_connections_to_an_exit_reach_nothing(hosts: Hosts) -> None:
    port = await hosts.echo()
    reader, writer = await asyncio.open_connection("127.0.0.1", hosts.exits["B.example"].getsockname()[1])
    writer.write(f"{port}\n".encode())
    assert await reader.read() == b""
    writer.close()


async def test_renewed_certificate_needs_no_restart(hosts: Hosts) -> None:
    port = await hosts.echo()
    await expired_there(hosts)
    await refusal(hosts, port)
    hosts.tell()
    await back_and_forth(await hosts.way("a").open("B.example", port))


async def test_authority_is_replaced_while_hosts_learn_of_it_one_after_the_other(hosts: Hosts, tmp_path: Path) -> None:
    port, authority = await hosts.echo(), hosts.authority
    before, of_before = authority.trusted, hosts.contexts("a")

    def tell_one(host: str) -> None:
        hosts.tunnels[host].configure(*hosts.contexts(host), {name: hosts.address(name) for name in hosts.exits})

    for step in (authority.prepare_next, authority.issue_by_next, authority.drop_former):
        step()
        for host in ("a", "B.example"):
            tell_one(host)
            await back_and_forth(await hosts.way("a").open("B.example", port))
            await back_and_forth(await hosts.way("B.example").open("a", port))
    assert authority.trusted != before
    assert Authority(tmp_path / "state", "r").trusted == authority.trusted
    hosts.tunnels["a"].configure(*of_before, {"B.example": hosts.address("B.example")})
    assert await refusal(hosts, port)


def test_authority_is_kept_and_refuses_damaged_requests(tmp_path: Path) -> None:
    made = Authority(tmp_path, "r")
    assert Authority(tmp_path, "r").trusted == made.trusted
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    with pytest.raises(ProtocolError, match="of host b is not valid"):
        made.issue("b", "rubbish")
    (tmp_path / FILE).write_text("rubbish")
    with pytest.raises(ConfigError, match="is damaged"):
        Authority(tmp_path, "r")
