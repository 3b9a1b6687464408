"""One host's end of the tunnels: entrances for its units, an exit for those of other hosts.

A unit that connects to the Unix socket writes `HOST PORT` and a line break, and reads `ok` or `no: REASON`; then the
connection is that to the port. The word `files` in place of a port means the file process of that host. A forward is an
entrance of its own that always leads to one port.

Invariants:
- An exit leads to the loopback address only, and to a port only while a process of this run listens there; or to the
  socket of the file process.
- Whoever comes is a host of the run now: its certificate names one, and the coordinator has not forgotten it.
- What passes is not read, and not kept beyond a buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from agentrl.errors import AgentrlError
from agentrl.tunnels.authority import name_of

log = logging.getLogger("tunnel")
LOOPBACK = "127.0.0.1"
FILES = "files"
"""The word for the file process of a host."""
WITHIN_S = 10.0
"""To connect, and to say where to."""
CLOSE_WITHIN_S = 2.0
_PIECE = 1 << 18
_LINE = 512
_BACKLOG = 512
_OK = "ok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class TunnelError(AgentrlError):
    """There is no way to a port on another host."""


class Tunnel:
    def __init__(self, host: str, entrance: Path, *, is_of_run: Callable[[int], bool]) -> None:
        """`is_of_run` says whether a process of the run listens on a port of this host."""
        self._host = host
        self._entrance = entrance
        self._is_of_run = is_of_run
        self._coming: ssl.SSLContext | None = None
        self._going: ssl.SSLContext | None = None
        self._peers: dict[str, str] = {}
        self._servers: dict[str, asyncio.Server] = {}
        self._forwards: dict[str, tuple[str, int]] = {}
        self._passing: set[asyncio.Task[None]] = set()

    def configure(self, coming: ssl.SSLContext, going: ssl.SSLContext, peers: Mapping[str, str]) -> None:
        """`peers` are the addresses of the exits of all hosts, by name."""
        self._coming, self._going, self._peers = coming, going, dict(peers)

    async def open_exit(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        # Each connection gets the newest context, so a renewed certificate needs no restart.
        context.sni_callback = self._newest
        self._servers["exit"] = await asyncio.start_server(
            self._as_task(self._exit),
            sock=listener,
            ssl=context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=WITHIN_S,
            limit=_PIECE,
        )

    async def open_entrance(self) -> None:
        await self._serve_on("entrance", self._entrance, self._enter)

    async def forward(self, name: str, host: str, port: int) -> None:
        """Open or change the entrance `NAME.sock` beside the other one."""
        known = self._forwards.get(name)
        self._forwards[name] = (host, port)
        if known is None:
            await self._serve_on(name, forward_path(self._entrance, name), lambda *ends: self._through(name, *ends))

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()
        for task in tuple(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)
        for path in (self._entrance, *(forward_path(self._entrance, name) for name in self._forwards)):
            path.unlink(missing_ok=True)

    async def _serve_on(self, name: str, path: Path, serve: Serve) -> None:
        """Only the user of this process may connect to the socket."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            self._servers[name] = await asyncio.start_unix_server(
                self._as_task(serve), path, backlog=_BACKLOG, limit=_PIECE
            )
        finally:
            os.umask(before)

    def _as_task(self, serve: Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """What a task of `asyncio.start_server` does not do: end quietly when the tunnel closes or one side left."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._to_its_end(serve, reader, writer), name="connection")
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

        return begin

    async def _to_its_end(self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except OSError:
            pass  # one side left
        finally:
            await _close(writer)

    def _newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if self._coming is not None:
            connection.context = self._coming

    # ---- from a unit of this host ----

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                host, _, port = (await reader.readline())[:_LINE].decode(errors="replace").strip().rpartition(" ")
            if not port.isdecimal() and port != FILES:
                raise TunnelError("The line must be HOST PORT.")
            there = await self._reach(host, port)
        except (AgentrlError, OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as failed:
            writer.write(f"no: {failed}\n".encode())
            return
        writer.write(f"{_OK}\n".encode())
        await _pass(reader, writer, *there)

    async def _through(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host, port = self._forwards[name]
            there = await self._reach(host, str(port))
        except (AgentrlError, OSError, TimeoutError, ValueError) as failed:
            log.warning("no way to %s: %s", name, failed)
            return
        await _pass(reader, writer, *there)

    async def _reach(self, host: str, port: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises TunnelError, OSError or TimeoutError."""
        if host == self._host:
            return await self._local(port)
        address = self._peers.get(host, "")
        at, _, exit_port = address.rpartition(":")
        if not exit_port or self._going is None:
            raise TunnelError(f"Host {host} has no tunnel now.")
        try:
            async with asyncio.timeout(WITHIN_S):
                reader, writer = await asyncio.open_connection(
                    at.strip("[]"), int(exit_port), ssl=self._going, server_hostname=name_of(host), limit=_PIECE
                )
                try:
                    writer.write(f"{port}\n".encode())
                    answer = (await reader.readline()).decode(errors="replace").strip()
                except BaseException:
                    writer.transport.abort()
                    raise
        except ssl.SSLCertVerificationError as refused:
            raise TunnelError(
                f"What answers at {address} is not host {host} of this run: {refused.verify_message}."
            ) from refused
        except TimeoutError:
            raise TunnelError(f"Host {host} does not answer at {address} within {WITHIN_S:g} s.") from None
        except OSError as broken:
            raise TunnelError(f"Host {host} cannot be reached at {address}: {_why(broken)}.") from broken
        if answer != _OK:
            await _close(writer)
            raise TunnelError(answer.removeprefix("no: ") or f"Host {host} at {address} refuses this host.")
        return reader, writer

    # ---- from another host ----

    async def _exit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (who := self._peer_of(writer)) is None:
            log.warning("a host that is not of the run any more is refused")
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                line = (await reader.readline()).decode(errors="replace").strip()
            if line != FILES and not (line.isdecimal() and await asyncio.to_thread(self._is_of_run, int(line))):
                raise TunnelError(f"No process of the run listens on port {line[:20]!r} of host {self._host}.")
            there = await self._local(line)
        except (AgentrlError, OSError, TimeoutError, ValueError) as failed:
            log.info("a connection from %s is refused: %s", who, failed)
            writer.write(f"no: {_why(failed)}\n".encode())
            return
        writer.write(f"{_OK}\n".encode())
        await _pass(reader, writer, *there)

    async def _local(self, port: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises TunnelError or OSError."""
        if port != FILES:
            return await asyncio.open_connection(LOOPBACK, int(port), limit=_PIECE)
        try:
            return await asyncio.open_unix_connection(forward_path(self._entrance, FILES), limit=_PIECE)
        except (FileNotFoundError, ConnectionRefusedError):
            raise TunnelError(f"Host {self._host} passes no files on now.") from None

    def _peer_of(self, writer: asyncio.StreamWriter) -> str | None:
        shown = writer.get_extra_info("peercert") or {}
        names = {value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"}
        return next((host for host in self._peers if name_of(host) in names), None)


def forward_path(entrance: Path, name: str) -> Path:
    return entrance.with_name(f"{entrance.stem}-{name}.sock")


async def _pass(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    there_reader: asyncio.StreamReader,
    there_writer: asyncio.StreamWriter,
) -> None:
    """Both ways until one side ends; what it had sent arrives first."""
    ways = [
        asyncio.create_task(_copy(reader, there_writer), name="there"),
        asyncio.create_task(_copy(there_reader, writer), name="back"),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await asyncio.gather(_close(writer), _close(there_writer))


async def _close(writer: asyncio.StreamWriter) -> None:
    """What was written arrives, unless the other side does not read it in time."""
    writer.close()
    try:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


def _why(failed: BaseException) -> str:
    if isinstance(failed, TimeoutError):
        return f"nothing came within {WITHIN_S:g} s"
    return (isinstance(failed, OSError) and failed.strerror) or str(failed) or type(failed).__name__
