"""Directories that are complete or absent.

Invariant: a directory gets its name only when everything in it is complete and, if requested, durable. The leftovers of
a killed writer have other names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import DiskError

UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def whole_directory(target: Path, *, durable: bool) -> Iterator[Path]:
    """Yields a directory to write into. At the end it replaces `target`."""
    unfinished = target.with_name(f"{UNFINISHED}{target.name}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        if durable:
            for file in unfinished.iterdir():
                _sync(file)
            _sync(unfinished)
        # An existing directory of this name is from a writer that died before it could record it.
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
        if durable:
            _sync(target.parent)
    except OSError as broken:
        raise DiskError(f"{target} cannot be written: {broken.strerror or broken}.") from broken


def sweep_unfinished(parent: Path) -> None:
    """Removes what killed writers left behind."""
    for left in parent.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
