"""A process of a toolbox that connects sandboxes with the hosts on their lists.

It is a separate process, so that traffic never delays the event loop of the toolbox. It speaks HTTP and CONNECT on
listening sockets that were opened inside the sandboxes; the toolbox hands them over on the standard input
(`network_access.py`).

Invariants:
- A connection goes to the address that was checked; the name is not resolved a second time.
- Connections, the head of a request and all waits are bounded. A tunnel that is silent for long ends.
- It ends with its toolbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from agentrl.config.network_rules import NetworkRules, split_port
from agentrl.sandboxes import network_socket

CONNECTIONS_OF_SANDBOX = 64
"""Further connections wait in the backlog of the socket."""
HEAD_BYTES = 1 << 16
HEAD_WITHIN_S = 10.0
CONNECT_WITHIN_S = 15.0
SILENT_AT_MOST_S = 600.0
REPORTS_PER_S = 20
LOOKUPS_OF_SANDBOX, LOOKUPS = 8, 256
"""Names that are resolved at the same time: slow ones of one sandbox do not delay others."""
MOST_HOST_CHARS = 253
_PIECE = 1 << 16
_MESSAGE_BYTES = 1 << 16
_HOP_HEADERS = (b"connection", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection")
_METHOD_CHARS = 20


class RefusedError(Exception):
    """The request is answered with an error."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Request:
    """The first request of a connection."""

    host: str
    port: int
    tunnel: bool
    head: bytes
    """What the destination gets first; empty for a tunnel."""


class SandboxListener:
    """Serves the listening socket of one sandbox."""

    def __init__(
        self, number: int, place: str, rules: NetworkRules, listener: socket.socket, report: RefusalReport
    ) -> None:
        self._number = number
        self._place = place
        self._rules = rules
        self._report = report
        self._listener = listener
        self._free = asyncio.Semaphore(CONNECTIONS_OF_SANDBOX)
        self._lookups = asyncio.Semaphore(LOOKUPS_OF_SANDBOX)
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name=f"accept from sandbox {number}")

    async def close(self) -> None:
        tasks = [self._accepting, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError:  # such as too many open files
                self._free.release()
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._serve(client), name=f"connection of sandbox {self._number}")
            self._connections.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._free.release()
        if not task.cancelled():
            task.exception()

    async def _serve(self, client: socket.socket) -> None:
        client.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=client, limit=HEAD_BYTES)
        try:
            try:
                async with asyncio.timeout(HEAD_WITHIN_S):
                    request = await _read_request(reader)
                to_reader, to_writer = await self._connected(request)
            except RefusedError as refused:
                await _answer(writer, refused)
                return
            try:
                if request.tunnel:
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    to_writer.write(request.head)
                await _relay((reader, writer), (to_reader, to_writer))
            finally:
                to_writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # one side is gone
        finally:
            writer.close()

    async def _connected(self, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = request.host, request.port
        if why := self._rules.refused(host, port):
            raise self._refusal(host, port, why)
        why = "cannot be reached"
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                async with self._lookups:
                    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
                for family, _, _, _, place in found:
                    address = str(place[0])
                    refused = self._rules.refused_address(host, address, port, of_this_host=_is_own(family, address))
                    if refused:
                        raise self._refusal(host, port, refused)
                for _, _, _, _, place in found:
                    with contextlib.suppress(OSError):
                        return await asyncio.open_connection(str(place[0]), port, limit=_PIECE)
        except TimeoutError:
            why = f"does not answer within {CONNECT_WITHIN_S:g} s"
        except (OSError, UnicodeError) as unknown:
            why = f"cannot be resolved ({getattr(unknown, 'strerror', None) or unknown})"
        raise RefusedError(HTTPStatus.BAD_GATEWAY, f"{host}:{port} {why}.")

    def _refusal(self, host: str, port: int, why: str) -> RefusedError:
        self._report.refused(self._number, f"{host[:MOST_HOST_CHARS]}:{port} {why}")
        return RefusedError(HTTPStatus.FORBIDDEN, f"{host}:{port} {why} ({self._place}.sandbox.network).")


class RefusalReport:
    """Reports refusals to the toolbox as lines of JSON, at most a few per second; later lines count the refusals left
    out."""

    def __init__(self) -> None:
        self._second = 0
        self._sent = 0
        self._left_out: dict[int, int] = {}

    def refused(self, sandbox: int, what: str) -> None:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._sent = second, 0
        self._sent += 1
        if self._sent > REPORTS_PER_S:
            self._left_out[sandbox] = self._left_out.get(sandbox, 0) + 1
            return
        times = 1 + self._left_out.pop(sandbox, 0)
        print(json.dumps({"sandbox": sandbox, "refused": what, "times": times}), flush=True)


async def _read_request(reader: asyncio.StreamReader) -> Request:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too long.") from None
    first, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    wrong = RefusedError(HTTPStatus.BAD_REQUEST, "This is a proxy for HTTP and, by CONNECT, for TLS.")
    try:
        method, target, version = first.decode("ascii").split(" ")
        if not version.startswith("HTTP/1.") or len(method) > _METHOD_CHARS or not target.isprintable():
            raise wrong
        if method == "CONNECT":
            host, port = split_port(target)
            if port is None:
                raise wrong
            return Request(host, port, True, b"")
        url = urlsplit(target)
        if url.scheme != "http" or not url.netloc:
            raise wrong
        host, port = split_port(url.netloc.rpartition("@")[2])
    except ValueError:
        raise wrong from None
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    kept = [line for line in headers if line.partition(b":")[0].strip().lower() not in _HOP_HEADERS]
    # One request for each connection: the next one may be for another host.
    lines = [
        f"{method} {path} HTTP/1.1".encode(),
        b"Host: " + url.netloc.rpartition("@")[2].encode(),
        b"Connection: close",
    ]
    return Request(host, port or 80, False, b"\r\n".join([*lines, *kept, b"", b""]))


async def _answer(writer: asyncio.StreamWriter, refused: RefusedError) -> None:
    """The sentence is also the reason of the status line, which clients show if a tunnel is refused."""
    sentence = "".join(char if " " <= char <= "~" else "?" for char in refused.sentence)
    body = f"{sentence}\n".encode()
    head = (
        f"HTTP/1.1 {refused.status.value} {sentence}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _relay(one: Ends, other: Ends) -> None:
    """Copy in both directions until both ended, or until neither sent anything for a while."""
    loop = asyncio.get_running_loop()
    active = loop.time()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal active
        while piece := await reader.read(_PIECE):
            active = loop.time()
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    copying = [asyncio.create_task(copy(one[0], other[1])), asyncio.create_task(copy(other[0], one[1]))]
    try:
        while loop.time() - active < SILENT_AT_MOST_S:
            done, running = await asyncio.wait(
                copying, timeout=SILENT_AT_MOST_S / 10, return_when=asyncio.FIRST_EXCEPTION
            )
            if not running or any(task.exception() for task in done):
                return
    finally:
        for task in copying:
            task.cancel()
        await asyncio.gather(*copying, return_exceptions=True)


def _is_own(family: int, address: str) -> bool:
    """Whether this is an address of this host: the kernel reaches such an address from itself."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False


async def _main(toolbox: socket.socket) -> None:
    """Serve the sandboxes that the toolbox names, until it is gone."""
    report = RefusalReport()
    sandboxes: dict[int, SandboxListener] = {}
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(LOOKUPS, thread_name_prefix="lookup"))
    toolbox.setblocking(False)
    loop.add_reader(toolbox, arrived.set)
    while True:
        await arrived.wait()
        arrived.clear()
        with contextlib.suppress(BlockingIOError):
            while True:
                data, descriptors = network_socket.receive(toolbox, _MESSAGE_BYTES)
                if not data:
                    return
                message = json.loads(data)
                number = message["sandbox"]
                if not descriptors:
                    if gone := sandboxes.pop(number, None):
                        await gone.close()
                    continue
                listener = socket.socket(fileno=descriptors[0])
                listener.setblocking(False)
                rules = NetworkRules(message["allowed"])
                sandboxes[number] = SandboxListener(number, message["place"], rules, listener, report)


if __name__ == "__main__":
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with socket.socket(fileno=sys.stdin.fileno()) as standard_input, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(standard_input))
