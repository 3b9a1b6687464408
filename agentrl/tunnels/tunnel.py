"""The tunnel of one host: entrances for its own units, and an exit for units of other hosts.

A unit that connects to the Unix socket writes `HOST PORT` and a line break, and reads `ok` or `no: REASON`; then the
connection leads to the port. The word `files` in place of a port means the file process of that host. A forward is a
separate entrance that always leads to one port.

Invariants:
- An exit leads only to a port of the loopback address on which a process of this run listens now, or to the socket of
  the file process.
- Only present hosts of the run are served: the certificate names the host, and the coordinator has not forgotten it.
- Data that passes is not inspected, and at most one buffer of it is kept.
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
from agentrl.tunnels.ends import CLOSE_WITHIN_S, End

log = logging.getLogger("tunnel")
LOOPBACK = "127.0.0.1"
FILES = "files"
"""The word for the file process of a host."""
WITHIN_S = 10.0
"""The time to connect, and to send the destination."""
_BACKLOG = 512
_OK = "ok"
Serve = Callable[[End], Awaitable[None]]


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
        self.ends: set[End] = set()
        self._opening: set[asyncio.Task[None]] = set()

    def configure(self, coming: ssl.SSLContext, going: ssl.SSLContext, peers: Mapping[str, str]) -> None:
        """`peers` are the addresses of the exits of all hosts, by name."""
        self._coming, self._going, self._peers = coming, going, dict(peers)

    async def open_exit(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        # Each connection gets the newest context, so a renewed certificate needs no restart.
        context.sni_callback = self._newest
        self._servers["exit"] = await asyncio.get_running_loop().create_server(
            lambda: self._end(self._exit),
            sock=listener,
            ssl=context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=WITHIN_S,
            ssl_shutdown_timeout=CLOSE_WITHIN_S,
        )

    async def open_entrance(self) -> None:
        await self._serve_on("entrance", self._entrance, self._enter)

    async def forward(self, name: str, host: str, port: int) -> None:
        """Open or change the entrance `NAME.sock` beside the other one."""
        known = self._forwards.get(name)
        self._forwards[name] = (host, port)
        if known is None:
            await self._serve_on(name, forward_path(self._entrance, name), lambda end: self._through(name, end))

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()
        for task in tuple(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for end in tuple(self.ends):
            end.abort()
        # Aborted connections close in the next turn of the event loop.
        await asyncio.sleep(0)
        for path in (self._entrance, *(forward_path(self._entrance, name) for name in self._forwards)):
            path.unlink(missing_ok=True)

    async def _serve_on(self, name: str, path: Path, serve: Serve) -> None:
        """Only the user of this process may connect to the socket."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            self._servers[name] = await asyncio.get_running_loop().create_unix_server(
                lambda: self._end(serve), str(path), backlog=_BACKLOG
            )
        finally:
            os.umask(before)

    def _end(self, serve: Serve | None = None) -> End:
        """An end of a new connection. `serve` finds its destination once it is connected; passing data then needs no
        task."""
        return End(lambda end: self._begin(end, serve), self.ends.discard)

    def _begin(self, end: End, serve: Serve | None) -> None:
        self.ends.add(end)
        if serve is not None:
            task = asyncio.create_task(self._opened(serve, end), name="connection")
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _opened(self, serve: Serve, end: End) -> None:
        try:
            await serve(end)
        except OSError:
            pass  # one side left
        finally:
            if not end.is_joined:
                end.close()

    def _newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if self._coming is not None:
            connection.context = self._coming

    # ---- from a unit of this host ----

    async def _enter(self, end: End) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                host, _, port = (await end.line()).rpartition(" ")
            if not _is_port(port) and port != FILES:
                raise TunnelError("The line must be HOST PORT.")
            there = await self._reach(host, port)
        except (AgentrlError, OSError, TimeoutError, ValueError) as failed:
            end.write(f"no: {failed}\n".encode())
            return
        end.write(f"{_OK}\n".encode())
        end.join(there)

    async def _through(self, name: str, end: End) -> None:
        try:
            host, port = self._forwards[name]
            there = await self._reach(host, str(port))
        except (AgentrlError, OSError, TimeoutError, ValueError) as failed:
            log.warning("no way to %s: %s", name, failed)
            return
        end.join(there)

    async def _reach(self, host: str, port: str) -> End:
        """Raises TunnelError, OSError or TimeoutError."""
        if host == self._host:
            return await self._local(port)
        address = self._peers.get(host, "")
        at, _, exit_port = address.rpartition(":")
        if not exit_port or self._going is None:
            raise TunnelError(f"Host {host} has no tunnel now.")
        try:
            async with asyncio.timeout(WITHIN_S):
                end = await self._connect(at.strip("[]"), int(exit_port), self._going, name_of(host))
                try:
                    end.write(f"{port}\n".encode())
                    answer = await end.line()
                except BaseException:
                    end.abort()
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
            end.close()
            raise TunnelError(answer.removeprefix("no: ") or f"Host {host} at {address} refuses this host.")
        return end

    async def _connect(self, address: str, port: int, context: ssl.SSLContext, name: str) -> End:
        _, end = await asyncio.get_running_loop().create_connection(
            self._end,
            address,
            port,
            ssl=context,
            server_hostname=name,
            ssl_shutdown_timeout=CLOSE_WITHIN_S,
        )
        return end

    # ---- from another host ----

    async def _exit(self, end: End) -> None:
        if (who := self._peer_of(end)) is None:
            log.warning("a host that is not of the run any more is refused")
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                line = await end.line()
            if line != FILES and not (_is_port(line) and await asyncio.to_thread(self._is_of_run, int(line))):
                raise TunnelError(f"No process of the run listens on port {line[:20]!r} of host {self._host}.")
            there = await self._local(line)
        except (AgentrlError, OSError, TimeoutError, ValueError) as failed:
            log.info("a connection from %s is refused: %s", who, failed)
            end.write(f"no: {_why(failed)}\n".encode())
            return
        end.write(f"{_OK}\n".encode())
        end.join(there)

    async def _local(self, port: str) -> End:
        """Raises TunnelError or OSError."""
        loop = asyncio.get_running_loop()
        if port != FILES:
            return (await loop.create_connection(self._end, LOOPBACK, int(port)))[1]
        try:
            return (await loop.create_unix_connection(self._end, str(forward_path(self._entrance, FILES))))[1]
        except (FileNotFoundError, ConnectionRefusedError):
            raise TunnelError(f"Host {self._host} passes no files on now.") from None

    def _peer_of(self, end: End) -> str | None:
        names = end.certified_names()
        return next((host for host in self._peers if name_of(host) in names), None)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16


def forward_path(entrance: Path, name: str) -> Path:
    return entrance.with_name(f"{entrance.stem}-{name}.sock")


def _why(failed: BaseException) -> str:
    if isinstance(failed, TimeoutError):
        return f"nothing came within {WITHIN_S:g} s"
    return (isinstance(failed, OSError) and failed.strerror) or str(failed) or type(failed).__name__
