"""The way in which a unit gets files of the run that its host does not have: through the file process of its host.

Invariants: in a run on one host no request is made; files that are already here are not requested again; files that
were brought stay while the unit needs them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from agentrl.files import frames
from agentrl.files.deltas import Delta
from agentrl.files.frames import FilesError, WrongListError
from agentrl.files.pieces import Content
from agentrl.formatting.amounts import size
from agentrl.http.run_hosts import FILES, way

AGAIN_S = 0.5
CONNECT_WITHIN_S = 30.0
"""This long, because the file process may still be starting."""
_Message = TypeVar("_Message", bound=msgspec.Struct)


def socket_for_hosts(tunnel: Path) -> Path:
    """The socket to which the tunnel connects other hosts."""
    return tunnel.with_name(f"{tunnel.stem}-{FILES}.sock")


def socket_for_units(tunnel: Path) -> Path:
    return tunnel.with_name(f"{tunnel.stem}-{FILES}-here.sock")


class UnitFiles:
    """The files of one unit. Used by one task at a time."""

    def __init__(self, tunnel: Path | None, *, report: Callable[[str], None] = lambda sentence: None) -> None:
        """`report` gets a sentence while files are being transferred. Without a tunnel the run is on one host."""
        self._socket = None if tunnel is None else socket_for_units(tunnel)
        self._report = report
        self._lock = asyncio.Lock()
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._brought: dict[str, dict[str, Content]] = {}
        self._let_go: dict[str, dict[str, Content]] = {}
        """Files that were brought over a connection that ended. With the end the file process stopped holding them."""
        self.share = 1.0
        """The share of the current transfer that is done."""

    @classmethod
    def of_this_unit(cls, report: Callable[[str], None] = lambda sentence: None) -> UnitFiles:
        found = way()
        return cls(None if found is None else found.tunnel, report=report)

    async def prepare(self, role: str) -> None:
        """Get the configuration and the files that the role reads. Raises FilesError."""
        await self._ask(frames.Prepare(role), "the files of the run")

    async def bring(
        self, directory: str, files: Mapping[str, Content], deltas: Mapping[str, Delta] | None = None
    ) -> None:
        """Gets these files into the directory. Raises FilesError, or WrongListError if asking again will not help."""
        if self._socket is None or self._brought.get(directory) == files:
            return
        self._let_go.pop(directory, None)
        while self._let_go:
            # These files are still needed, and usually still exist.
            other, held = self._let_go.popitem()
            with contextlib.suppress(FilesError):
                await self._bring(other, held)
        await self._bring(directory, dict(files), deltas)

    async def _bring(
        self, directory: str, files: dict[str, Content], deltas: Mapping[str, Delta] | None = None
    ) -> None:
        await self._ask(frames.Bring(directory, files, dict(deltas or {})), directory)
        self._brought[directory] = files

    async def keep(self, directories: Iterable[str]) -> None:
        """Lets the file process remove the files of all other directories."""
        kept = set(directories)
        self._let_go = {directory: files for directory, files in self._let_go.items() if directory in kept}
        if not self._brought.keys() - kept or self._ends is None:
            return
        async with self._lock:
            self._brought = {directory: files for directory, files in self._brought.items() if directory in kept}
            frames.write(self._ends[1], frames.Keep(sorted(self._brought)))
            with contextlib.suppress(OSError):
                await self._ends[1].drain()

    def close(self) -> None:
        if self._ends is not None:
            self._ends[1].transport.abort()
            self._ends = None
        self._let_go |= self._brought
        self._brought = {}

    async def _ask(self, question: frames.FromUnit, what: str) -> None:
        if self._socket is None:
            return
        async with self._lock:
            self.share = 0.0
            try:
                reader, writer = self._ends = self._ends or await self._connect(self._socket)
                frames.write(writer, question)
                await writer.drain()
                while True:
                    answer = msgspec.json.decode(await frames.read(reader), type=frames.Progress | frames.Done)
                    if isinstance(answer, frames.Done):
                        break
                    self.share = answer.done_bytes / max(1, answer.all_bytes)
                    if answer.done_bytes < answer.all_bytes:
                        self._report(f"gets {what}: {size(answer.done_bytes)} of {size(answer.all_bytes)}")
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as failed:
                self.close()
                raise FilesError(f"The file process of this host ended or does not answer: {failed}.") from failed
            except BaseException:
                self.close()
                raise
        if answer.damaged:
            raise WrongListError(answer.problem)
        if answer.problem:
            raise FilesError(answer.problem)

    @staticmethod
    async def _connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            while True:
                try:
                    return await asyncio.open_unix_connection(path)
                except (FileNotFoundError, ConnectionRefusedError):
                    await asyncio.sleep(AGAIN_S)
