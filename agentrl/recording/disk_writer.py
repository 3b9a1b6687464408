"""The recording files of a run on disk: the current file, and older ones within limits of size and age.

Invariants: the oldest files are removed first, and the current file never; no file without a whole frame remains; an
error of the disk ends the current file and is reported until a new file is open.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentrl.recording.file_format import MAGIC

DIRECTORY = "recordings"
"""In the state directory of a run."""
SUFFIX = ".rec"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept of a run; a size of 0 keeps nothing."""

    most_bytes: int = 2 * 1024**3
    keep_s: float = 7 * 86_400.0


class RecordingFiles:
    """Used by one thread at a time; any thread may read `trouble`."""

    def __init__(self, directory: Path) -> None:
        self.trouble = ""
        """Why nothing is written now, in a sentence."""
        self._directory = directory
        self._file: BinaryIO | None = None
        self._path: Path | None = None

    def begin(self, frame: bytes, now: float, limits: Limits, *, new_file: bool) -> None:
        """Begins a frame, in a new file if there is none or if `new_file` is set."""
        try:
            if self._file is None or new_file:
                self._open(now)
            assert self._file is not None
            self._file.write(frame)
            self._file.flush()
            self._prune(now, limits)
            self.trouble = ""
        except OSError as error:
            self._give_up(error)
            if self._path is not None and self._path.exists() and self._path.stat().st_size <= len(MAGIC):
                self._path.unlink(missing_ok=True)

    def append(self, blocks: bytes) -> None:
        """Appends to the frame; does nothing while there is trouble."""
        if self._file is None:
            return
        try:
            self._file.write(blocks)
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def clear(self) -> None:
        self.close()
        for path in self._files():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                log.warning("the end of the recording is lost: %s", error)

    def _open(self, now: float) -> None:
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._directory / f"{int(now * 1000):015d}{SUFFIX}"
        self._file = self._path.open("ab")
        self._path.chmod(0o600)
        if not self._file.tell():
            self._file.write(MAGIC)

    def _prune(self, now: float, limits: Limits) -> None:
        """Removes files that are too old, and the oldest ones beyond the size."""
        sizes = {path: path.stat().st_size for path in self._files()}
        total = sum(sizes.values())
        for path, size in sizes.items():
            begun_at = int(path.stem) / 1000
            if path == self._path or (total <= limits.most_bytes and now - begun_at <= limits.keep_s):
                break
            path.unlink(missing_ok=True)
            total -= size

    def _files(self) -> list[Path]:
        """Files that a writer began, the oldest first."""
        return sorted(path for path in self._directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())

    def _give_up(self, error: OSError) -> None:
        if not self.trouble:
            log.error("nothing is recorded: %s", error)
        self.trouble = f"Nothing is recorded: {error.strerror or error}."
        self.close()
