"""What a backend remembers of the hosts that it started, in `placement/` of the coordinator's state directory.

Invariants:
- A note has no secret.
- Two processes that note something at once lose nothing: a lock orders them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from agentrl.errors import DiskError

Note = TypeVar("Note", bound=msgspec.Struct)


class Notes(Generic[Note]):
    """Notes of one backend, by host."""

    def __init__(self, state_dir: str | os.PathLike[str], backend: str, kind: type[Note]) -> None:
        self._path = Path(state_dir) / "placement" / f"{backend}.json"
        self._decoder = msgspec.json.Decoder(dict[str, kind])  # type: ignore[valid-type]

    @property
    def folder(self) -> Path:
        return self._path.parent

    def all(self) -> dict[str, Note]:
        try:
            return self._decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as broken:
            raise DiskError(
                f"{self._path} cannot be read: {broken}.", hint="Remove it; hosts are found again."
            ) from broken

    def update(self, changed: dict[str, Note | None]) -> None:
        """Set the notes of some hosts; None removes one."""
        with self.locked():
            notes = self.all()
            for host, note in changed.items():
                notes.pop(host, None)
                if note is not None:
                    notes[host] = note
            draft = self._path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(msgspec.json.encode(notes))
            draft.replace(self._path)

    @contextlib.contextmanager
    def locked(self, name: str = "notes") -> Iterator[None]:
        """Wait for the lock of that name and hold it. It ends with its holder."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / f"{self._path.stem}.{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failed:
            raise DiskError(f"{self.folder} cannot be written: {failed.strerror}.") from failed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
