"""The file processes of the other hosts, and the connections to them.

Invariant: a connection carries one request at a time. If a request is abandoned, its connection is used again after the
answer has come. Each version abandons some requests that wait for a change, and a new connection would cost two TLS
handshakes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec

from agentrl.files import frames
from agentrl.http.run_hosts import FILES, Way

SILENT_S = 8.0
"""If no byte of an answer comes for this long, the other host counts as gone."""
PIECE_WITHIN_S = 120.0
_READ_BYTES = 1 << 18
Answer = TypeVar("Answer", bound=msgspec.Struct)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        self._answer: asyncio.Task[bytes] | None = None
        self._is_for_piece = False
        """Whether the bytes of a piece follow the answer."""

    async def ask(self, question: frames.FromHost, answer: type[Answer], *, within_s: float = SILENT_S) -> Answer:
        """Sends a request and returns its answer. Raises OSError or TimeoutError."""
        async with asyncio.timeout(within_s):
            frames.write(self._writer, question)
            await self._writer.drain()
            self._answer = asyncio.create_task(frames.read(self.reader), name="answer")
            try:
                body = await asyncio.shield(self._answer)
                self._answer = None
                return msgspec.json.decode(body, type=answer)
            except (asyncio.IncompleteReadError, msgspec.MsgspecError) as broken:
                raise ConnectionError(f"the answer is broken: {broken}") from broken

    @property
    def awaits_answer(self) -> bool:
        """Whether the request was abandoned and only its answer is still to come."""
        return self._answer is not None and not self._is_for_piece

    async def settle(self) -> None:
        """Read the answer of the abandoned request. Raises OSError, TimeoutError or asyncio.IncompleteReadError."""
        if self._answer is not None:
            async with asyncio.timeout(SILENT_S):
                await self._answer
            self._answer = None

    def abort(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
        self._writer.transport.abort()

    async def piece(self, question: frames.SendPiece) -> bytes:
        """Requests a piece and returns its bytes. Raises OSError or TimeoutError."""
        self._is_for_piece = True
        async with asyncio.timeout(PIECE_WITHIN_S):
            announced = await self.ask(question, frames.Piece)
            if announced.problem:
                raise ConnectionError(announced.problem)
            data = bytearray()
            while len(data) < announced.bytes:
                async with asyncio.timeout(SILENT_S):
                    more = await self.reader.read(min(_READ_BYTES, announced.bytes - len(data)))
                if not more:
                    raise ConnectionError("the connection ended within a piece")
                data += more
        self._is_for_piece = False
        return bytes(data)


class Peers:
    def __init__(self, way: Way, hosts: Callable[[], frozenset[str]]) -> None:
        """`hosts` returns the current other hosts of the run."""
        self._way = way
        self._idle: dict[str, list[Connection]] = {}
        self._settling: dict[asyncio.Task[None], Connection] = {}
        self.hosts = hosts

    @property
    def is_idle(self) -> bool:
        """Whether no abandoned request waits for its answer."""
        return not self._settling

    @contextlib.asynccontextmanager
    async def connection(self, host: str) -> AsyncIterator[Connection]:
        """Yields an idle or a new connection to the host. Raises OSError or TimeoutError."""
        idle = self._idle.setdefault(host, [])
        while idle and idle[-1].reader.at_eof():
            idle.pop().abort()
        if idle:
            connection = idle.pop()
        else:
            end = await self._way.open(host, FILES)
            connection = Connection(*await asyncio.open_unix_connection(sock=end, limit=1 << 20))
        try:
            yield connection
        except asyncio.CancelledError:
            if connection.awaits_answer:
                self._settle(connection, idle)
            else:
                connection.abort()
            raise
        except BaseException:
            connection.abort()
            raise
        idle.append(connection)

    def _settle(self, connection: Connection, idle: list[Connection]) -> None:
        async def settle() -> None:
            try:
                await connection.settle()
                idle.append(connection)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                connection.abort()

        task = asyncio.create_task(settle(), name="settle")
        self._settling[task] = connection
        task.add_done_callback(self._settling.pop)

    def close(self) -> None:
        for task in self._settling:
            task.cancel()
        for connection in (*self._settling.values(), *(one for idle in self._idle.values() for one in idle)):
            connection.abort()
        self._idle.clear()
