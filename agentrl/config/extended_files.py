"""Reads a run file with the files that it extends, as one tree.

Invariants:
- a value of a file replaces the same value of the file that it extends; sections and tables are merged key by key,
  lists and values are replaced as a whole;
- every value keeps the line and the directory of the file that it comes from, so messages name that line, and relative
  paths are relative to that directory;
- a file that extends itself, directly or through other files, is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config.typed_paths import path_of
from agentrl.config.yaml_reader import Tree, read_tree
from agentrl.errors import ConfigError

KEY = "extends"
MOST_BYTES = 16 << 20
"""A run file is much shorter. Without a limit, a device such as /dev/zero would be read for ever."""

At = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The merged tree of a run file."""

    value: dict[str, Any] = field(default_factory=dict)
    sources: dict[At, str] = field(default_factory=dict)
    """`FILE:LINE` of each value, FILE relative to the run file."""
    directories: dict[At, Path] = field(default_factory=dict)
    """The directory of the file that each value comes from."""


def read(file: Path) -> Written:
    """The merged tree of a file and the files that it extends. Raises ConfigError if a file is missing, is no run file,
    or extends itself."""
    chain: list[tuple[Path, Tree]] = []
    asked_by, here = "", file
    while True:
        name = os.path.relpath(here, file.parent)
        _refuse_cycle([known for known, _ in chain], here, file.parent)
        tree = read_tree(_text(here, asked_by), name)
        chain.append((here, tree))
        if KEY not in tree.value:
            break
        asked_by = f"{name}:{tree.lines[(KEY,)]}"
        here = _extended(tree.value[KEY], here, asked_by)
    joined = Written()
    for path, tree in reversed(chain):
        name = os.path.relpath(path, file.parent)
        _put_over(joined, tree.value, (), {at: f"{name}:{line}" for at, line in tree.lines.items()}, path.parent)
        if path != file:
            _forget(joined, (KEY,))
            joined.value.pop(KEY, None)
    return joined


def _extended(named: object, by: Path, where: str) -> Path:
    if not isinstance(named, str) or not named.strip():
        raise ConfigError(f"{where}: {KEY} must be the path of one run file.")
    return Path(os.path.normpath(by.parent / path_of(named)))


def _refuse_cycle(known: list[Path], here: Path, beside: Path) -> None:
    same = [path for path in known if path.resolve() == here.resolve()]
    if same:
        way = [os.path.relpath(path, beside) for path in [*known[known.index(same[0]) :], here]]
        raise ConfigError(f"{way[0]} extends itself: {' extends '.join(way)}.")


def _put_over(joined: Written, value: dict[str, Any], at: At, sources: dict[At, str], directory: Path) -> None:
    """Replaces values of the files that a file extends by its own values."""
    if at in sources:
        joined.sources[at], joined.directories[at] = sources[at], directory
    here = joined.value
    for key in at:
        here = here[key]
    for key, item in value.items():
        place = (*at, key)
        below = here.get(key)
        if isinstance(below, dict) and item is None:
            continue  # A section with only comments sets nothing.
        if isinstance(below, dict) and isinstance(item, dict):
            _put_over(joined, item, place, sources, directory)
            continue
        _forget(joined, place)
        here[key] = item
        for each in sources:
            if each[: len(place)] == place:
                joined.sources[each], joined.directories[each] = sources[each], directory


def _forget(joined: Written, at: At) -> None:
    for each in [each for each in joined.sources if each[: len(at)] == at]:
        del joined.sources[each], joined.directories[each]


def _text(file: Path, asked_by: str) -> str:
    who = f"{asked_by}: " if asked_by else ""
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{who}{file} is longer than {MOST_BYTES >> 20} MiB, so it is no run file.")
        return content.decode()
    except FileNotFoundError:
        raise ConfigError(f"{who}There is no run file {file}.", hint="Is the path right?") from None
    except OSError as broken:
        raise ConfigError(f"{who}The run file {file} cannot be read: {broken.strerror}.") from broken
    except UnicodeDecodeError as broken:
        raise ConfigError(f"{who}The run file {file} is not UTF-8 text (byte {broken.start}).") from broken
