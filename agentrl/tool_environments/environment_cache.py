"""Keeps environments in the cache directory: builds them in temporary directories, lists them, and removes unused ones.

Invariants:
- A directory without a leading dot is complete, unless something else damaged it.
- One process builds an environment at a time. Its child programs share the lock, so the lock is free only when all have
  ended.
- An environment that a toolbox uses is not removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import paths
from agentrl.errors import DiskError

DESCRIPTION = "environment.json"
_POLL_S = 0.2
_INTERPRETERS = ("bin/python", "bin/node")
_in_use: dict[Path, int] = {}


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment in the cache."""

    path: Path
    kind: str
    packages: tuple[str, ...]
    """The packages as named in the run file."""
    count: int
    """Installed packages."""
    bytes: int
    made_at: float
    in_use: bool
    problem: str = ""
    """Why its description cannot be read; its other values are then unknown."""


def root() -> Path:
    return paths.cache() / "tools"


def is_usable(place: Path) -> bool:
    """Whether the environment is complete, and its interpreter still exists."""
    return (place / DESCRIPTION).is_file() and all(link.exists() for link in interpreters_of(place))


def interpreters_of(place: Path) -> list[Path]:
    """The Python or the Node.js that runs the programs of an environment: links to where they are installed."""
    return [link for name in _INTERPRETERS if (link := place / name).is_symlink()]


def make(
    place: Path, build: Callable[[Path, int], None], description: dict[str, object], on_wait: Callable[[str], None]
) -> bool:
    """Build the environment unless it exists; returns whether this call built it.

    `build` gets a directory that does not exist and the lock to pass to its programs. `on_wait` gets a sentence while
    another process builds it.
    """
    if is_usable(place):
        return False
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _build_lock(place, on_wait) as lock:
            if is_usable(place):
                return False
            aside = place.with_name(f".{place.name}.new")
            shutil.rmtree(aside, ignore_errors=True)
            try:
                build(aside, lock)
                (aside / DESCRIPTION).write_text(json.dumps({**description, "made_at": time.time()}))
                _discard(place)
                aside.rename(place)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    except OSError as broken:
        raise DiskError(
            f"The packages of tool servers cannot be kept in {place.parent}: {broken.strerror}.",
            hint="Free some space, or set AGENTRL_CACHE to a directory of yours.",
        ) from broken
    return True


def use(place: Path) -> None:
    """Keep the environment, and the Node.js in another one, from being removed while this process lives.

    Raises FileNotFoundError if it was removed before.
    """
    node = (place / "bin/node").resolve()
    if (
        node.is_relative_to(root().resolve())
        and (other := root() / node.relative_to(root().resolve()).parts[0]) != place
    ):
        use(other)
    if place not in _in_use:
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_SH)
        # It may have been removed while this process waited for the lock.
        if not place.exists() or not os.path.samestat(os.fstat(handle), os.stat(place)):
            os.close(handle)
            raise FileNotFoundError(place)
        _in_use[place] = handle
    elif not os.path.samestat(os.fstat(_in_use[place]), os.stat(place)):
        os.close(_in_use.pop(place))
        use(place)


def environments() -> list[Environment]:
    """All environments, including damaged ones, the oldest first. An environment that another process removes now may
    be missing."""
    found = []
    for place in _entries():
        if not place.name.startswith("."):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.append(_described(place))
    return sorted(found, key=lambda each: each.made_at)


def _entries() -> list[Path]:
    try:
        return list(root().iterdir())
    except FileNotFoundError:
        return []


def _described(place: Path) -> Environment:
    handle = _exclusive(place)
    if handle >= 0:
        os.close(handle)
    in_use, changed_at = handle < 0, place.stat().st_mtime
    try:
        about = json.loads((place / DESCRIPTION).read_bytes())
        kind, count, made_at = str(about["kind"]), int(about["count"]), float(about["made_at"])
        packages = tuple(map(str, about["packages"]))
    except (OSError, ValueError, KeyError, TypeError) as broken:
        missing = isinstance(broken, FileNotFoundError)
        problem = f"{DESCRIPTION} {'is missing' if missing else 'cannot be read'}"
        return Environment(place, "", (), 0, _size(place), changed_at, in_use, problem)
    return Environment(place, kind, packages, count, _size(place), made_at, in_use)


def remove_unused() -> list[Environment]:
    """Remove the environments that no process uses now, including damaged ones, and the leftovers of interrupted
    installations and removals. Returns the removed environments."""
    removed = []
    for each in environments():
        with contextlib.suppress(FileNotFoundError):
            handle = _exclusive(each.path)
            if handle >= 0:
                _discard(each.path)
                os.close(handle)
                removed.append(each)
    for path in _entries():
        if path.name.startswith(".") and ".old-" in path.name:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(".") and path.suffix in (".new", ".lock"):
            lock = path.with_suffix(".lock")
            if (holder := _locked(lock)) >= 0:
                shutil.rmtree(path.with_suffix(".new"), ignore_errors=True)
                lock.unlink(missing_ok=True)
                os.close(holder)
    return removed


def _exclusive(place: Path) -> int:
    """Lock an environment that no process uses, and return the handle; -1 if one uses it."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return -1
    return handle


def _discard(place: Path) -> None:
    """Remove an environment. It is renamed first, because half of it would look complete."""
    with contextlib.suppress(FileNotFoundError):
        old = place.with_name(f".{place.name}.old-{os.getpid()}")
        place.rename(old)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _build_lock(place: Path, on_wait: Callable[[str], None]) -> Iterator[int]:
    path = place.with_name(f".{place.name}.lock")
    while (handle := _locked(path)) < 0:
        with contextlib.suppress(OSError):
            on_wait(f"process {path.read_text().strip()} installs the same packages")
        time.sleep(_POLL_S)
    try:
        os.write(handle, f"{os.getpid()}\n".encode())
        yield handle
    finally:
        # Removed only by its holder, so a process that waits for a removed file notices and opens the next.
        path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path) -> int:
    """The handle of the lock file, or -1 while another process has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            os.ftruncate(handle, 0)
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return -1


def _size(place: Path) -> int:
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total
