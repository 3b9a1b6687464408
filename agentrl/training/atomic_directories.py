"""Directories that are whole or not there.

Invariant: a directory gets its name only when everything in it is complete, and, where it has to outlive the machine's
power, durable; what a killed writer left behind has a name that nobody takes for the real one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.errors import DiskError

UNFINISHED = ".unfinished-"


class FileFact(msgspec.Struct, frozen=True):
    bytes: int
    hash: str


@contextlib.contextmanager
def whole_directory(target: Path, *, durable: bool) -> Iterator[Path]:
    """Write into the directory that is given; it becomes `target` at the end, in the place of one that is there."""
    unfinished = target.with_name(f"{UNFINISHED}{target.name}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        if durable:
            for file in unfinished.iterdir():
                _sync(file)
            _sync(unfinished)
        # A complete one of this name is of a writer that died before it could say so.
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
        if durable:
            _sync(target.parent)
    except OSError as broken:
        raise DiskError(f"{target} cannot be written: {broken.strerror or broken}.") from broken


def sweep_unfinished(parent: Path) -> None:
    """Remove what killed writers left."""
    for left in parent.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def facts(directory: Path) -> dict[str, FileFact]:
    return {file.name: fact(file) for file in sorted(directory.iterdir()) if file.is_file()}


def fact(file: Path) -> FileFact:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.blake2b())
    return FileFact(file.stat().st_size, digest.hexdigest())


def problem_of(directory: Path, expected: dict[str, FileFact]) -> str:
    """Empty, or what is not as it was written. Sizes are looked at first: they are cheap and say most."""
    if not expected:
        return "it has no files"
    for name, known in expected.items():
        try:
            size = (directory / name).stat().st_size
        except OSError as broken:
            return f"{name} cannot be read ({broken.strerror})"
        if size != known.bytes:
            return f"{name} has {size} bytes, not {known.bytes}"
    for name, known in expected.items():
        if fact(directory / name) != known:
            return f"{name} has another content than was written"
    return ""


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
