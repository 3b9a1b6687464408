"""The files of this host that other hosts of the run may read.

Invariants: these are the files that a trainer here wrote (the model that it built, weights, checkpoints and the
reference, in the run's directory), and the files that were listed for units of other hosts since this process started.
No path, not even through a link, leads out of these directories.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agentrl.files.pieces import Content, piece_range

WRITTEN = ("weights", "checkpoints", "reference", "model")
"""Directories within the run's directory."""


class Sources:
    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._listed: dict[str, Path] = {}

    def list(self, files: Mapping[str, Content]) -> None:
        """Lets other hosts read these files, which are given by absolute path."""
        self._listed |= {content.blake2b: Path(path) for path, content in files.items()}

    def find(self, path: str, content: Content) -> Path | None:
        """The file that has this content, judged by name and size. The host that gets a piece checks its hash."""
        listed = self._listed.get(content.blake2b)
        for found in filter(None, (listed, self._written(path))):
            try:
                if found.is_file() and found.stat().st_size == content.bytes:
                    return found
            except OSError:
                continue
        return None

    def _written(self, path: str) -> Path | None:
        if Path(path).parts[:1] not in {(name,) for name in WRITTEN} or "\0" in path:
            return None
        found = (self._run_dir / path).resolve()
        beside = (self._run_dir.resolve() / name for name in WRITTEN)
        return found if any(found.is_relative_to(one) for one in beside) else None


def read_piece(file: Path, size: int, number: int) -> bytes:
    """The bytes of a piece. Raises OSError if the file does not have it."""
    offset, length = piece_range(size, number)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
            data = more if not data else data + more
    finally:
        os.close(descriptor)
    if len(data) != length or length <= 0:
        raise OSError(0, f"piece {number} is not in {file.name}")
    return data
