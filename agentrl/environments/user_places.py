"""Which lines of a stack are the code of a user.

Invariants:
- The standard library, installed packages and agentrl are not a user's, unless the run names a directory of theirs.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

_ROOT = Path(__file__).parents[2]
_OURS = tuple(_ROOT / name for name in ("agentrl", "daemons", "tui"))
_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_named: set[Path] = set()


class Place(NamedTuple):
    """A line of user code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}, line {self.line}"


def add_directory(directory: Path) -> None:
    """The run names code in this directory."""
    _named.add(directory)
    is_users.cache_clear()


@functools.lru_cache(maxsize=10_000)
def is_users(file: str) -> bool:
    path = Path(file)
    if path.suffix != ".py" or any(path.is_relative_to(ours) for ours in _OURS):
        return False
    if any(path.is_relative_to(named) for named in _named):
        return True
    return not path.is_relative_to(_LIBRARY) and _INSTALLED.isdisjoint(path.parts)


def of_frame(frame: FrameType | None) -> Place | None:
    """The innermost line of user code that led to this frame."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def of_traceback(traceback: TracebackType | None) -> Place | None:
    """The innermost line of user code that an exception passed."""
    found = None
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            found = Place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def of_function(function: Any) -> Place | None:
    """Where a function is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else Place(code.co_filename, code.co_firstlineno)


def creating(frame: FrameType | None) -> Place | None:
    """The code that creates something, if a user's code does it itself and not a library for its own use.

    Frames of the standard library between are those of the function that was called.
    """
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or not is_users(frame.f_code.co_filename):
        return None
    return Place(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=10_000)
def _is_library(file: str) -> bool:
    return Path(file).is_relative_to(_LIBRARY) and _INSTALLED.isdisjoint(Path(file).parts)
