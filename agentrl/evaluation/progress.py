"""How far an `agentrl eval run` is: a small file beside its results, for the console.

Invariants:
- Nothing depends on the file: if it cannot be written, the evaluation goes on without it.
- A program that was killed leaves the file behind, and its age shows that. A program that made all attempts removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

EVERY_S = 1.0
SILENT_S = 15.0
"""An older file is that of a program that was stopped."""


class Progress(msgspec.Struct, kw_only=True):
    model: str
    wanted: int
    """Attempts of this call, without those of earlier calls."""
    ended: int = 0
    failed: int = 0
    """How many of the ended attempts have no score."""
    at: float = 0.0
    """Wall clock of the last sign of life."""

    def runs(self, now: float) -> bool:
        return now - self.at < SILENT_S


def file_of(results: Path) -> Path:
    return results.with_name(f"{results.name}.progress")


def read(results: Path) -> Progress | None:
    """The progress of the program that works, or was stopped, on these results; None if there is none."""
    try:
        return msgspec.json.decode(file_of(results).read_bytes(), type=Progress)
    except (OSError, msgspec.MsgspecError):
        return None


@contextlib.asynccontextmanager
async def kept(results: Path, progress: Progress) -> AsyncIterator[None]:
    """Writes the file repeatedly while the context lasts."""
    writing = asyncio.create_task(_write_on(results, progress), name="progress of the evaluation")
    try:
        yield
    finally:
        writing.cancel()
        _write(results, progress)
    with contextlib.suppress(OSError):
        file_of(results).unlink(missing_ok=True)


async def _write_on(results: Path, progress: Progress) -> None:
    while True:
        _write(results, progress)
        await asyncio.sleep(EVERY_S)


def _write(results: Path, progress: Progress) -> None:
    progress.at = time.time()
    file = file_of(results)
    half = file.with_name(f"{file.name}.half")
    with contextlib.suppress(OSError):
        half.write_bytes(msgspec.json.encode(progress))
        half.replace(file)
