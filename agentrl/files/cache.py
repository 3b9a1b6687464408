"""Files from other hosts, by the hash of their content, with a limit on their total size.

Invariants:
- A file has its name only when it is whole, checked and durable; until then its name ends in `.part`.
- A file that is held is not removed. Of the others, the least recently used one is removed first, with all its names in
  the run's directory.
- No file is begun unless there is room for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from agentrl.files.frames import FilesError
from agentrl.files.pieces import Content, piece_count, piece_hash
from agentrl.files.sources import WRITTEN, read_piece
from agentrl.formatting import amounts

FOLDER = "files"
PART = ".part"
LIMIT_BYTES = 100 << 30
SPARE, MOST_SPARE_BYTES = 0.02, 1 << 30
"""The share of a disk that is left free, and the most bytes of it."""


class Cache:
    def __init__(self, run_dir: Path, host: str, limit_bytes: int = LIMIT_BYTES) -> None:
        self._run_dir = run_dir
        self._host = host
        # Hosts may share a directory without the run knowing it, so each host has its own folder.
        self._folder = run_dir / FOLDER / hashlib.sha256(host.encode()).hexdigest()[:8]
        self.limit_bytes = limit_bytes
        self._held: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        """The sizes of whole files by hash, the least recently used first."""
        self._begun: dict[str, int] = {}
        self._names: dict[str, set[Path]] = {}
        self._look()

    def whole(self, content: Content) -> Path | None:
        """The file, if it is here."""
        file = self._folder / content.blake2b
        if self._sizes.get(content.blake2b) != content.bytes or not file.is_file():
            return None
        self._sizes[content.blake2b] = self._sizes.pop(content.blake2b)  # now the most recently used
        return file

    def hold(self, contents: Iterable[Content]) -> None:
        self._held.update(content.blake2b for content in contents)

    def release(self, contents: Iterable[Content]) -> None:
        self._held.subtract(content.blake2b for content in contents)
        self._held += Counter()  # drops entries that are no longer held

    def begin(self, content: Content) -> tuple[Path, bool]:
        """A file of the right size to write pieces into, and whether an earlier pull left some pieces. Raises
        FilesError if there is no room."""
        file = self._folder / f"{content.blake2b}{PART}"
        left = file.exists()
        try:
            self._make_room(content)
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as opened:
                opened.truncate(content.bytes)
        except OSError as failed:
            raise FilesError(f"{file} on host {self._host} cannot be written: {failed.strerror}.") from failed
        self._begun[content.blake2b] = content.bytes
        return file, left

    def finish(self, content: Content) -> Path:
        """Completes a file whose pieces are all written. Blocks until it is durable."""
        part, whole = self._folder / f"{content.blake2b}{PART}", self._folder / content.blake2b
        descriptor = os.open(part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(whole)
        self._begun.pop(content.blake2b, None)
        self._sizes[content.blake2b] = content.bytes
        return whole

    def left(self, content: Content) -> None:
        """Marks a file as unfinished. Its pieces are kept until the room is needed."""
        if content.blake2b in self._begun:
            self._sizes[f"{content.blake2b}{PART}"] = self._begun.pop(content.blake2b)

    def name(self, content: Content, target: Path) -> None:
        """Give a whole file a name in the run's directory."""
        file = self._folder / content.blake2b
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and target.samefile(file):
            return
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        try:
            os.link(file, fresh)
        except OSError:
            shutil.copyfile(file, fresh)  # the file system has no hard links
        fresh.replace(target)
        self._names.setdefault(content.blake2b, set()).add(target)

    def remove_all(self) -> None:
        """Remove every file with all its names. Call this only when no process uses them."""
        for digest in list(self._sizes):
            self._remove(digest)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _look(self) -> None:
        """Finds the files that an earlier process left."""
        with contextlib.suppress(FileNotFoundError):
            found = [(file.stat(), file.name) for file in self._folder.iterdir() if file.is_file()]
            self._sizes = {name: stat.st_size for stat, name in sorted(found, key=lambda one: one[0].st_mtime)}
            by_inode = {stat.st_ino: name for stat, name in found}
            for name in itertools.chain(*((self._run_dir / folder).rglob("*") for folder in WRITTEN)):
                if digest := by_inode.get(name.stat().st_ino):
                    self._names.setdefault(digest, set()).add(name)

    def _make_room(self, content: Content) -> None:
        """Removes files until there is room, within the limit and on the disk, which other programs fill too."""
        own = f"{content.blake2b}{PART}"
        self._sizes.pop(own, None)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        for digest in [*self._sizes, ""]:
            used = sum(self._sizes.values()) + sum(self._begun.values())
            disk = shutil.disk_usage(self._folder.parent)
            left = min(self.limit_bytes - used, disk.free - min(int(SPARE * disk.total), MOST_SPARE_BYTES))
            if content.bytes <= left:
                return
            if digest and not self._held[digest]:
                self._remove(digest)
        raise FilesError(
            f"Host {self._host} has no room for {amounts.size(content.bytes)} of the run: of "
            f"{amounts.size(self.limit_bytes)} (hosts.{self._host}.cache) {amounts.size(max(0, left))} are not in use.",
            hint="Give the host a larger cache, or free its disk.",
        )

    def _remove(self, digest: str) -> None:
        for name in (*self._names.pop(digest, ()), self._folder / digest):
            name.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                name.parent.rmdir()
        self._sizes.pop(digest, None)


def pieces_there(part: Path, content: Content) -> int:
    """A bitmap of the correct pieces of an unfinished file. Reads the file."""
    found = 0
    for number in range(piece_count(content.bytes)):
        with contextlib.suppress(OSError):
            data = read_piece(part, content.bytes, number)
            found |= (piece_hash(data) == content.pieces[number]) << number
    return found
