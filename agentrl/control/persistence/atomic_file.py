"""Replaces small files atomically.

Invariants:
- A reader sees the whole old content or the whole new content.
- The file gets its mode before its content, so a secret is never readable by others.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from agentrl.errors import DiskError


def replace_file(path: Path, content: bytes, *, mode: int, durable: bool = True) -> None:
    """Write a file by rename. Raises DiskError and then leaves the old file as it was.

    A `durable` file survives a power loss; a heartbeat that is written every few seconds need not be durable.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as out:
            os.fchmod(out.fileno(), mode)
            out.write(content)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        os.replace(draft, path)
        if durable:
            sync_directory(path.parent)
    except OSError as failed:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise DiskError(
            f"{path} cannot be written: {failed.strerror}.", hint="Free some space, or make it writable."
        ) from failed


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
