"""The file processes of the other hosts, and the connections to them.

Invariant: a connection carries one question at a time; one that was abandoned before its answer is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeVar

import msgspec

from agentrl.files import frames
from agentrl.http.run_hosts import FILES, Way

SILENT_S = 8.0
"""Without a byte of an answer for this long, the other host counts as gone."""
PIECE_WITHIN_S = 120.0
_READ_BYTES = 1 << 18
Answer = TypeVar("Answer", bound=msgspec.Struct)


class Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, question: frames.FromHost, answer: type[Answer], *, within_s: float = SILENT_S) -> Answer:
        """Raises OSError or TimeoutError."""
        async with asyncio.timeout(within_s):
            frames.write(self.writer, question)
            await self.writer.drain()
            try:
                return msgspec.json.decode(await frames.read(self.reader), type=answer)
            except (asyncio.IncompleteReadError, msgspec.MsgspecError) as broken:
                raise ConnectionError(f"the answer is broken: {broken}") from broken

    async def piece(self, question: frames.SendPiece) -> bytes:
        """Raises OSError or TimeoutError."""
        async with asyncio.timeout(PIECE_WITHIN_S):
            told = await self.ask(question, frames.Piece)
            if told.problem:
                raise ConnectionError(told.problem)
            data = bytearray()
            while len(data) < told.bytes:
                async with asyncio.timeout(SILENT_S):
                    more = await self.reader.read(min(_READ_BYTES, told.bytes - len(data)))
                if not more:
                    raise ConnectionError("the connection ended within a piece")
                data += more
        return bytes(data)


class Peers:
    def __init__(self, way: Way, hosts: Callable[[], frozenset[str]]) -> None:
        """`hosts` are the other hosts of the run now."""
        self._way = way
        self._idle: dict[str, list[Connection]] = {}
        self.hosts = hosts

    @contextlib.asynccontextmanager
    async def connection(self, host: str) -> AsyncIterator[Connection]:
        """Raises OSError or TimeoutError."""
        idle = self._idle.setdefault(host, [])
        while idle and idle[-1].reader.at_eof():
            idle.pop().writer.close()
        if idle:
            connection = idle.pop()
        else:
            end = await self._way.open(host, FILES)
            connection = Connection(*await asyncio.open_unix_connection(sock=end, limit=1 << 20))
        try:
            yield connection
        except BaseException:
            connection.writer.transport.abort()
            raise
        idle.append(connection)

    def close(self) -> None:
        for connection in (one for idle in self._idle.values() for one in idle):
            connection.writer.transport.abort()
        self._idle.clear()
