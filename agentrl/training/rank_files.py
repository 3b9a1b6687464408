"""Where each rank finds the directories that all ranks read: a model, a checkpoint, the reference.

Invariants:
- ranks in one directory of the run read the same files;
- a rank on another host gets them from the hosts that have them, and loads no file that differs from the one that the
  leading rank has read;
- the model that the run file names was copied with the other files of the run, and each host has its own path to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from agentrl.config.run_marker import MARKER
from agentrl.errors import ConfigError
from agentrl.files.frames import FilesError
from agentrl.files.pieces import Content, content_of, is_content

Bring = Callable[[str, Mapping[str, Content]], None]
"""Gets files into a directory, relative to that of the run. Raises FilesError."""
NAMED = "model of the run file"


class Place(msgspec.Struct, frozen=True):
    """A directory, as the rank that leads describes it to the others."""

    path: str
    """Relative to the run's directory if it is in there, or NAMED."""
    files: dict[str, Content] = {}
    """What it must contain; empty if all ranks are on one host."""
    run_dir: str = ""
    """The run's directory on that host; ranks with the same directory need not copy anything."""


class RankFiles:
    """`bring` is used by ranks that do not have the directory of the rank that leads."""

    def __init__(self, run_dir: Path, model: str = "", *, host: str = "", bring: Bring | None = None) -> None:
        """`model` is the directory of the model in the configuration of this host."""
        self._run_dir = run_dir
        self._model = model
        self._bring = bring
        # The directory to which the coordinator writes is the same one, wherever it is mounted.
        self._own = "coordinator" if (run_dir / MARKER).exists() else f"{host}:{run_dir}"
        self._is_spread = os.environ.get("LOCAL_WORLD_SIZE", "1") != os.environ.get("WORLD_SIZE", "1")
        self._described: dict[Path, dict[str, Content]] = {}

    def place(self, directory: Path, files: Mapping[str, Content] | None = None) -> Place:
        """For the rank that leads. `files` are known for a checkpoint; otherwise they are read if other hosts need
        them."""
        if self._model and directory == Path(self._model):
            return Place(NAMED)
        inside = directory.is_relative_to(self._run_dir)
        path = str(directory.relative_to(self._run_dir) if inside else directory)
        if not self._is_spread:
            return Place(path, run_dir=self._own)
        if files and not any(content.problem() for content in files.values()):
            self._described[directory] = dict(files)
        if directory not in self._described:
            self._described[directory] = _contents(directory)
        return Place(path, self._described[directory], self._own)

    def find(self, place: Place) -> Path:
        """For the other ranks. Raises FilesError, or ConfigError if the directory cannot be here."""
        if place.path == NAMED:
            return Path(self._model)
        directory = self._run_dir / place.path
        if place.files and place.run_dir != self._own and self._bring is not None:
            for name in _different(directory, place.files):
                # Left by an earlier start of the run. Existing files would not be requested again.
                (directory / name).unlink(missing_ok=True)
            self._bring(place.path, place.files)
            if wrong := _different(directory, place.files):
                raise FilesError(f"{directory / wrong[0]} is not the file that rank 0 has.")
        if not directory.is_dir():
            raise ConfigError(
                f"{place.path} of rank 0 is not on this host.",
                hint="The ranks of a job without a run need one shared directory.",
            )
        return directory


def _contents(directory: Path) -> dict[str, Content]:
    return {file.name: content_of(file) for file in sorted(directory.iterdir()) if file.is_file()}


def _different(directory: Path, wanted: Mapping[str, Content]) -> list[str]:
    """The files that are missing or have another content."""
    return [name for name, content in wanted.items() if not _is(directory / name, content)]


def _is(file: Path, content: Content) -> bool:
    try:
        return is_content(file, content)
    except OSError:
        return False
