"""Gets one file from the other hosts, piece by piece.

Invariants:
- A piece is written only if its hash is right; a host that sends a wrong piece gets no more requests for this file.
- If a pull ends early, the pieces that it wrote stay, and the next pull continues from them.
- Every pull ends: with the file, or with the reason after no host has sent a piece for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from agentrl.files import frames
from agentrl.files.cache import Cache, pieces_there
from agentrl.files.frames import FilesError
from agentrl.files.peers import Peers
from agentrl.files.piece_schedule import Request, Source, next_requests
from agentrl.files.pieces import Content, piece_count, piece_hash, piece_range

log = logging.getLogger("files")
AT_ONCE = 2
"""Concurrent requests to one host, so that the next piece is on its way while one is checked."""
WITHOUT_A_PIECE_S = 30.0
WITHOUT_A_SOURCE_S = 4.0
"""A pull fails after this time without a host that answers and has a missing piece, because waiting would keep an
engine from a newer version."""
AGAIN_S = 1.0
ANSWERS_WITHIN_S = 3.0
"""A host reports its pieces after this time at the latest, even if nothing changed."""


class Pull:
    """The transfer of one file. `on_change` is called when the pieces that this host has or requests have changed."""

    def __init__(
        self,
        path: str,
        content: Content,
        *,
        here: str,
        cache: Cache,
        peers: Peers,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self.content = path, content
        self.part: Path | None = None
        self.have = self.asked = self.revision = 0
        self.got: Counter[str] = Counter()
        """The number of pieces by the host that sent them."""
        self._here = here
        self._cache = cache
        self._peers = peers
        self._on_change = on_change
        self._count = piece_count(content.bytes)
        self._pieces: dict[str, frames.PieceList] = {}
        self._open: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        """Hosts that failed, each with the time until which it gets no requests."""
        self._why: dict[str, str] = {}
        self._wrong: set[str] = set()
        self._news = asyncio.Event()

    @property
    def done_bytes(self) -> int:
        return min(self.content.bytes, self.have.bit_count() * piece_range(self.content.bytes, 0)[1])

    def came_from(self) -> str:
        return ", ".join(f"{number} pieces from {host}" for host, number in sorted(self.got.items()))

    async def run(self) -> Path:
        """Gets the file and returns its path. Raises FilesError."""
        part, left = self._cache.begin(self.content)
        self.part = part
        try:
            if left:
                self.have = await asyncio.to_thread(pieces_there, part, self.content)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch_all(), name="watch hosts")
                await self._get_all(part)
                watching.cancel()
            file = await asyncio.to_thread(self._cache.finish, self.content)
            self._changed()
            return file
        except BaseExceptionGroup as failed:
            raise first_of(failed) from failed
        except OSError as failed:
            raise FilesError(f"{part} cannot be written: {failed.strerror}.") from failed
        finally:
            self._cache.left(self.content)

    # ---- the pieces of other hosts ----

    async def _watch_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            watched: dict[str, asyncio.Task[None]] = {}
            while True:
                hosts = self._peers.hosts()
                for host in hosts - watched.keys():
                    watched[host] = tasks.create_task(self._watch(host), name=f"watch {host}")
                for host in watched.keys() - hosts:
                    watched.pop(host).cancel()
                    self._pieces.pop(host, None)
                await asyncio.sleep(AGAIN_S)

    async def _watch(self, host: str) -> None:
        while True:
            try:
                async with self._peers.connection(host) as connection:
                    known = -1
                    while True:
                        question = frames.AskPieces(self.path, self.content, known)
                        there = await connection.ask(question, frames.PieceList)
                        known = there.revision
                        self._note(host, there)
            except (OSError, TimeoutError) as failed:
                self._pieces.pop(host, None)
                self._why[host] = str(failed) or "it does not answer"
                self._news.set()
                await asyncio.sleep(AGAIN_S)

    def _note(self, host: str, there: frames.PieceList) -> None:
        if there.nothing:
            self._pieces.pop(host, None)
            self._why[host] = "it does not have the file"
        else:
            self._pieces[host] = there
        self._news.set()

    def _sources(self) -> dict[str, Source]:
        now, everything = time.monotonic(), (1 << self._count) - 1
        return {
            host: Source(
                have=everything if there.whole else int(there.have, 16) & everything,
                asked=int(there.asked, 16),
                whole=there.whole,
                origin=there.origin,
                free=AT_ONCE - self._open[host],
            )
            for host, there in self._pieces.items()
            if host not in self._wrong and self._not_before.get(host, 0.0) <= now
        }

    # ---- the pieces ----

    async def _get_all(self, part: Path) -> None:
        at = sourced_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while (missing := self._count - self.have.bit_count()) > 0:
                self._news.clear()
                for request in next_requests(self._here, self.have, self.asked, self._count, self._sources()):
                    self.asked |= 1 << request.piece
                    self._open[request.source] += 1
                    self._changed()
                    tasks.create_task(self._get(request, part), name=f"piece {request.piece}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await self._news.wait()
                now = time.monotonic()
                if missing != self._count - self.have.bit_count():
                    at = now
                unheard = self._peers.hosts() - self._pieces.keys() - self._why.keys()
                if unheard or any(source.have & ~self.have for source in self._sources().values()):
                    sourced_at = now
                if now - at > WITHOUT_A_PIECE_S or now - sourced_at > WITHOUT_A_SOURCE_S:
                    raise FilesError(self._complaint())

    async def _get(self, request: Request, part: Path) -> None:
        number, host = request
        try:
            async with self._peers.connection(host) as connection:
                data = await connection.piece(frames.SendPiece(self.path, self.content, number))
            if await asyncio.to_thread(self._written, part, number, data):
                self.have |= 1 << number
                self.got[host] += 1
            else:
                self._wrong.add(host)
                self._why[host] = f"what it sent as piece {number} is not that of the list"
                log.warning("%s: host %s gets no more requests: %s", self.path, host, self._why[host])
        except (OSError, TimeoutError) as failed:
            self._not_before[host] = time.monotonic() + AGAIN_S
            self._why[host] = str(failed) or "it does not answer"
        finally:
            self.asked &= ~(1 << number)
            self._open[host] -= 1
            self._changed()
            self._news.set()

    def _written(self, part: Path, number: int, data: bytes) -> bool:
        """Writes a correct piece. Raises FilesError if the disk cannot take it."""
        if piece_hash(data) != self.content.pieces[number]:
            return False
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CLOEXEC)
            try:
                at, rest = piece_range(self.content.bytes, number)[0], memoryview(data)
                while rest:
                    written = os.pwrite(descriptor, rest, at)
                    at, rest = at + written, rest[written:]
            finally:
                os.close(descriptor)
        except OSError as failed:
            raise FilesError(f"{part} on host {self._here} cannot be written: {failed.strerror}.") from failed
        return True

    def _changed(self) -> None:
        self.revision += 1
        self._on_change()

    def _complaint(self) -> str:
        got = f"{self.have.bit_count()} of {self._count} pieces came"
        reasons = "; ".join(f"{host}: {why}" for host, why in sorted(self._why.items()))
        return f"{self.path} cannot be got, {got} ({reasons or 'no other host is known'})."


def first_of(failed: BaseException) -> BaseException:
    """The error of the task that ended the task group."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed
