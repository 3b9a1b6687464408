"""The work of the file process of a host: it answers other hosts, and gets the files that units of its own host need.

Invariants:
- Units that ask for the same file wait for the same pull.
- Files that a unit asked for stay until its connection ends or the unit names others to keep.
- If this host has the run's own directory, nothing that is already in it is written.
- If this host has the base of a delta, it gets only the delta; if that fails for any reason, it gets the whole file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from agentrl.config.paths import IN_FORCE
from agentrl.config.run_marker import read_marker
from agentrl.errors import AgentrlError
from agentrl.files import frames, named_files
from agentrl.files.cache import Cache
from agentrl.files.deltas import Delta, apply_delta
from agentrl.files.frames import FilesError, WrongListError
from agentrl.files.peers import Peers
from agentrl.files.pieces import Content
from agentrl.files.pulls import ANSWERS_WITHIN_S, Pull, first_of
from agentrl.files.sources import Sources, read_piece

log = logging.getLogger("files")
AT_ONCE = 8
REPORT_EVERY_S = 1.0
LIST_WITHIN_S = 600.0
"""The other host reads every file once."""
_UNCHANGING = 1 << 40
_WRITE_BYTES = 1 << 18


class FileService:
    def __init__(self, host: str, run: str, run_dir: Path, cache: Cache, peers: Peers) -> None:
        self._host, self._run, self._run_dir = host, run, run_dir
        self._cache = cache
        self._peers = peers
        self._sources = Sources(run_dir)
        self._known: named_files.Known = {}
        self._listing = asyncio.Lock()
        self._pulls: dict[str, Pull] = {}
        self._tasks: dict[str, asyncio.Task[Path]] = {}
        self._waiting: dict[str, int] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._change = asyncio.Event()
        self.data_host = ""
        """The host of the coordinator."""

    async def close(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._peers.close()

    # ---- for other hosts ----

    async def serve_host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            question = msgspec.json.decode(await frames.read(reader), type=frames.FromHost)
            match question:
                case frames.AskPieces():
                    frames.write(writer, await self._pieces_once_changed(question))
                case frames.SendPiece():
                    await self._send(question, writer)
                case frames.ListFiles(role=role):
                    frames.write(writer, await self._list(role))
            await writer.drain()

    async def _pieces_once_changed(self, question: frames.AskPieces) -> frames.PieceList:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                while self._pieces(question).revision == question.known:
                    await self._change.wait()
        return self._pieces(question)

    def _pieces(self, question: frames.AskPieces) -> frames.PieceList:
        if self._cache.whole(question.content):
            return frames.PieceList(_UNCHANGING, whole=True)
        if self._sources.find(question.path, question.content):
            return frames.PieceList(_UNCHANGING, whole=True, origin=True)
        if pull := self._pulls.get(question.content.blake2b):
            return frames.PieceList(pull.revision, f"{pull.have:x}", f"{pull.asked:x}")
        return frames.PieceList(0, nothing=True)

    async def _send(self, question: frames.SendPiece, writer: asyncio.StreamWriter) -> None:
        content = question.content
        file = self._cache.whole(content) or self._sources.find(question.path, content)
        pull = self._pulls.get(content.blake2b)
        if file is None and pull is not None and pull.have >> question.number & 1:
            file = pull.part
        try:
            if file is None:
                raise FileNotFoundError(0, "it does not have the piece")
            data = await asyncio.to_thread(read_piece, file, content.bytes, question.number)
        except OSError as failed:
            frames.write(writer, frames.Piece(problem=failed.strerror or str(failed)))
            return
        frames.write(writer, frames.Piece(len(data)))
        for at in range(0, len(data), _WRITE_BYTES):
            writer.write(data[at : at + _WRITE_BYTES])
            await writer.drain()

    async def _list(self, role: str) -> frames.Listed:
        if not self._is_own_directory():
            return frames.Listed(problem=f"Host {self._host} does not have the run's directory.")
        async with self._listing:
            found = await asyncio.to_thread(named_files.listed, self._run_dir, role, self._known)
        self._sources.list(found.files)
        return found

    # ---- for units of this host ----

    async def serve_unit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held: dict[str, list[Content]] = {}
        # A unit sends nothing while it waits, so anything read then is the end of its connection.
        next_one = asyncio.create_task(frames.read(reader), name="read")
        try:
            while True:
                question = msgspec.json.decode(await next_one, type=frames.FromUnit)
                next_one = asyncio.create_task(frames.read(reader), name="read")
                if isinstance(question, frames.Keep):
                    for directory in held.keys() - set(question.directories):
                        self._cache.release(held.pop(directory))
                    continue
                if isinstance(question, frames.Bring):
                    contents = list(question.files.values())
                    self._cache.hold(contents)
                    held.setdefault(question.directory, []).extend(contents)
                await self._answer(question, writer, next_one)
        finally:
            next_one.cancel()
            await asyncio.gather(next_one, return_exceptions=True)
            for contents in held.values():
                self._cache.release(contents)

    async def _answer(
        self, question: frames.Bring | frames.Prepare, writer: asyncio.StreamWriter, ended: asyncio.Task[bytes]
    ) -> None:
        contents: dict[str, Content] = {}
        work = (
            self._bring(question, contents) if isinstance(question, frames.Bring) else self._prepare(question, contents)
        )
        task = asyncio.create_task(work, name="bring")
        try:
            while not task.done() and not ended.done():
                await asyncio.wait([task, ended], timeout=REPORT_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                frames.write(writer, self._progress(contents))
                await writer.drain()
            done = frames.Done()
            if task.done():
                task.result()
        except AgentrlError as failed:
            log.warning("%s", failed)
            done = frames.Done(str(failed), damaged=isinstance(failed, WrongListError))
        except OSError as failed:
            log.warning("%s", failed)
            done = frames.Done(f"{failed.filename or self._run_dir} cannot be written: {failed.strerror}.")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        frames.write(writer, done)
        await writer.drain()

    def _progress(self, wanted: Mapping[str, Content]) -> frames.Progress:
        done = 0
        for content in wanted.values():
            pull = self._pulls.get(content.blake2b)
            done += pull.done_bytes if pull else content.bytes if self._cache.whole(content) else 0
        return frames.Progress(done, sum(content.bytes for content in wanted.values()))

    async def _bring(self, question: frames.Bring, wanted: dict[str, Content]) -> None:
        directory = PurePosixPath(question.directory)
        if directory.is_absolute() or ".." in directory.parts or not directory.parts:
            raise WrongListError(f"{directory} is no directory of the run.")
        for name, content in question.files.items():
            path = str(directory / name)
            if PurePosixPath(name).name != name or name in ("", ".."):
                raise WrongListError(f"{name!r} of {directory} is no plain file name.")
            if self._cache.whole(content) is None and self._sources.find(path, content) is not None:
                continue
            if problem := content.problem():
                raise WrongListError(f"{path} cannot be got from another host: {problem}.")
            wanted[path] = content
        await self._get_all(wanted, {str(directory / name): one for name, one in question.deltas.items()})
        for path, content in wanted.items():
            self._cache.name(content, self._run_dir / path)

    async def _prepare(self, question: frames.Prepare, wanted: dict[str, Content]) -> None:
        if self._is_own_directory():
            return
        found = await self._ask_for_list(question.role)
        wanted |= found.files
        with self._holding(wanted):
            await self._get_all(wanted)
            await asyncio.to_thread(self._place, found)

    async def _ask_for_list(self, role: str) -> frames.Listed:
        if not self.data_host:
            raise FilesError(f"Host {self._host} does not know yet which host has the run's directory.")
        try:
            async with self._peers.connection(self.data_host) as connection:
                found = await connection.ask(frames.ListFiles(role), frames.Listed, within_s=LIST_WITHIN_S)
        except (OSError, TimeoutError) as failed:
            raise FilesError(f"Host {self.data_host} does not say what the run needs: {failed}.") from failed
        if found.problem:
            raise FilesError(found.problem)
        for path, content in found.files.items():
            if problem := content.problem():
                raise WrongListError(f"{path} of host {self.data_host} cannot be got: {problem}.")
        return found

    def _place(self, found: frames.Listed) -> None:
        """Puts the listed files in place. They are copies, because tool servers may write to them; the configuration
        comes last."""
        there, config = named_files.config_here(found.config, self._run_dir)
        for path, content in found.files.items():
            target, file = named_files.place_here(path, there, self._run_dir), self._cache.whole(content)
            if file is None:
                raise FilesError(f"{path} is gone from the cache of host {self._host}.")
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}.new")
            shutil.copyfile(file, fresh)
            fresh.chmod(0o700 if path in found.executable else 0o600)
            fresh.replace(target)
        fresh = self._run_dir / f".{IN_FORCE}.new"
        fresh.touch(mode=0o600)
        fresh.write_bytes(config)
        fresh.replace(self._run_dir / IN_FORCE)

    async def _get_all(self, wanted: Mapping[str, Content], deltas: Mapping[str, Delta] | None = None) -> None:
        async def get(path: str, content: Content) -> None:
            async with self._at_once:
                await self._get(path, content, (deltas or {}).get(path))

        try:
            async with asyncio.TaskGroup() as tasks:
                for path, content in wanted.items():
                    tasks.create_task(get(path, content), name=path)
        except BaseExceptionGroup as failed:
            raise first_of(failed) from failed

    async def _get(self, path: str, content: Content, delta: Delta | None = None) -> None:
        digest = content.blake2b
        if self._cache.whole(content):
            return
        if digest not in self._tasks:
            pull = Pull(
                path, content, here=self._host, cache=self._cache, peers=self._peers, on_change=self._tell_change
            )
            self._pulls[digest] = pull
            self._tasks[digest] = asyncio.create_task(self._obtain(pull, delta), name=f"pull {digest[:12]}")
        task = self._tasks[digest]
        self._waiting[digest] = self._waiting.get(digest, 0) + 1
        try:
            await asyncio.shield(task)
        finally:
            self._waiting[digest] -= 1
            if not self._waiting[digest]:
                task.cancel()
                pull = self._pulls.pop(digest)
                self._tasks.pop(digest)
                self._waiting.pop(digest)
                await asyncio.gather(task, return_exceptions=True)
                if pull.got:
                    log.info("%s: %s", path, pull.came_from())
                self._tell_change()

    async def _obtain(self, pull: Pull, delta: Delta | None) -> Path:
        if delta is not None and (base := self._cache.whole(delta.base)) is not None:
            try:
                return await self._changed(base, pull, delta)
            except (AgentrlError, OSError) as failed:
                log.warning("%s is got whole: %s", pull.path, failed)
        return await pull.run()

    async def _changed(self, base: Path, pull: Pull, delta: Delta) -> Path:
        """Makes the file from its base, which is on this host, and the delta."""
        beside = str(PurePosixPath(pull.path).with_name(delta.name))
        if PurePosixPath(delta.name).name != delta.name or delta.content.problem():
            raise WrongListError(f"{delta.name!r} is not a delta that another host could be asked for.")
        with self._holding({"": delta.base, beside: delta.content}):
            await self._get(beside, delta.content)
            changes = self._cache.whole(delta.content)
            if changes is None:
                raise FilesError(f"{beside} is gone from the cache of host {self._host}.")
            part, _ = self._cache.begin(pull.content)
            try:
                await asyncio.to_thread(apply_delta, base, changes, part, pull.content)
                file = await asyncio.to_thread(self._cache.finish, pull.content)
            except BaseException:
                # The next pull would take the wrong bytes for pieces of this file.
                part.unlink(missing_ok=True)
                raise
            finally:
                self._cache.left(pull.content)
        log.info("%s: by its difference to another file, %d bytes", pull.path, delta.content.bytes)
        return file

    # ----

    @contextlib.contextmanager
    def _holding(self, wanted: Mapping[str, Content]) -> Iterator[None]:
        contents = list(wanted.values())
        self._cache.hold(contents)
        try:
            yield
        finally:
            self._cache.release(contents)

    def _tell_change(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    def _is_own_directory(self) -> bool:
        """Whether the run's directory is the one that the coordinator writes to. Then no files need to be copied."""
        marker = read_marker(self._run_dir)
        return marker is not None and marker.uuid == self._run
