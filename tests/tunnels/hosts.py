"""Tunnels of several hosts in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.http.run_hosts import Way
from agentrl.tunnels.authority import Authority
from agentrl.tunnels.certificates import HostKey
from agentrl.tunnels.tunnel import Tunnel


class Hosts:
    """Tunnels of several hosts in one process, with exits on different ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "state").mkdir()
        self.authority = Authority(folder / "state", "r")
        self.tunnels: dict[str, Tunnel] = {}
        self.exits: dict[str, socket.socket] = {}
        self.keys: dict[str, HostKey] = {}
        self.open_ports: set[int] = set()
        self.services: list[asyncio.Server] = []
        self.calls: list[asyncio.Future[None]] = []

    def entrance(self, host: str) -> Path:
        return self._folder / f"{host}.sock"

    def way(self, host: str) -> Way:
        return Way(self.entrance(host), host)

    async def add(self, host: str) -> None:
        self.keys[host] = HostKey()
        self.exits[host] = socket.create_server(("127.0.0.1", 0))
        tunnel = self.tunnels[host] = Tunnel(host, self.entrance(host), is_of_run=self.open_ports.__contains__)
        await tunnel.open_entrance()
        contexts = self.contexts(host)
        tunnel.configure(*contexts, {})
        await tunnel.open_exit(self.exits[host], contexts[0])
        self.tell()

    def contexts(self, host: str, authority: Authority | None = None, days: float = 30):  # type: ignore[no-untyped-def]
        signs = authority or self.authority
        key = self.keys[host]
        return key.contexts(signs.issue(host, key.request(), days=days), signs.trusted)

    def address(self, host: str) -> str:
        return f"127.0.0.1:{self.exits[host].getsockname()[1]}"

    def tell(self, **other: str) -> None:
        peers = {host: self.address(host) for host in self.tunnels} | other
        for host, tunnel in self.tunnels.items():
            tunnel.configure(*self.contexts(host), peers)

    async def echo(self) -> int:
        """A service; returns its port."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
            writer.close()

        port = await self.serve(serve)
        self.open_ports.add(port)
        return port

    async def serve(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> int:
        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.calls.append(asyncio.ensure_future(serve(reader, writer)))

        server = await asyncio.start_server(begin, "127.0.0.1", 0)
        self.services.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for tunnel in self.tunnels.values():
            await tunnel.close()
        for server in self.services:
            server.close()
            await server.wait_closed()
        await asyncio.gather(*self.calls, return_exceptions=True)
