"""Records which fields of the run file a process reads.

Invariants:
- Only reads of a configuration that a process loaded count; reads while it is validated do not.
- A copy of a section has the paths of the section. Making the copy reads nothing.
- A path has `*` in place of a name or a number that the user chose: `environments.*.weight`.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentrl.config.field_types import Section
from agentrl.config.introspection import Shape
from agentrl.config.readers import has_sections
from agentrl.config.run import RunConfig

FOLDER_VARIABLE = "PYTHON_READ_SETTINGS"
"""The directory with one file for each group. Units inherit all variables whose names begin with PYTHON."""

WHOLE = "*"
"""Noted if a process reads the whole configuration as plain data."""
_LOADERS = ("model_validate", "model_validate_json")


class Recorder:
    """Notes the path of each field that is read from the configurations that it watches."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self._paths: dict[int, tuple[Section, str]] = {}
        """The path of each section, by its identity. The sections are kept, so that no other object gets theirs."""
        self._silent = False

    def watch(self, value: object, path: str = "") -> None:
        match value:
            case Section():
                with self.silence():
                    self._paths[id(value)] = (value, f"{path}." if path else "")
                    for name in type(value).model_fields:
                        self.watch(getattr(value, name), f"{path}.{name}" if path else name)
            case dict():
                for item in value.values():
                    self.watch(item, f"{path}.*")
            case tuple():
                for item in value:
                    self.watch(item, f"{path}.*")

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def read(self, section: Section, name: str) -> None:
        if self._silent or (place := self._paths.get(id(section))) is None:
            return
        fields = _settings(type(section))
        # Iterating over a section, comparing and dumping it read all its fields.
        for field in fields if name == "__dict__" else (name,) if name in fields else ():
            self.note(place[1] + field)

    def copied(self, section: Section, copy: Section) -> None:
        if (place := self._paths.get(id(section))) is not None:
            self.watch(copy, place[1].removesuffix("."))


@functools.cache
def _settings(section: type[Section]) -> tuple[str, ...]:
    """The fields of a section that are not sections themselves."""
    return tuple(name for name, field in section.model_fields.items() if not has_sections(Shape(field.annotation)))


@contextlib.contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Records until the end of the block."""
    usual = Section.__getattribute__, Section.model_copy, RunConfig.model_dump
    loaders = {name: getattr(RunConfig, name) for name in _LOADERS}
    install(recorder)
    try:
        yield
    finally:
        Section.__getattribute__, Section.model_copy, RunConfig.model_dump = usual  # type: ignore[method-assign]
        for name, load in loaders.items():
            setattr(RunConfig, name, load)


def install(recorder: Recorder) -> None:
    """Records from now on."""
    usual, usual_copy, usual_dump = Section.__getattribute__, Section.model_copy, RunConfig.model_dump

    def read(section: Section, name: str) -> Any:
        recorder.read(section, name)
        return usual(section, name)

    def copy(section: Section, **changes: Any) -> Section:
        with recorder.silence():
            copied = usual_copy(section, **changes)
        recorder.copied(section, copied)
        return copied

    def dump(config: RunConfig, **options: Any) -> dict[str, Any]:
        recorder.note(WHOLE)
        with recorder.silence():
            return usual_dump(config, **options)

    def loading(load: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
        def loaded(*args: Any, **options: Any) -> RunConfig:
            with recorder.silence():
                config = load(*args, **options)
            recorder.watch(config)
            return config

        return loaded

    Section.__getattribute__ = read  # type: ignore[method-assign]
    Section.model_copy = copy  # type: ignore[assignment,method-assign]
    RunConfig.model_dump = dump  # type: ignore[assignment,method-assign]
    for name in _LOADERS:
        setattr(RunConfig, name, loading(getattr(RunConfig, name)))


def record_this_process() -> None:
    """Records all reads of this unit until it ends."""
    folder, group = os.environ.get(FOLDER_VARIABLE), os.environ.get("AGENTRL_GROUP")
    if not folder or not group:
        return
    noted: set[str] = set()

    def note(path: str) -> None:
        if path not in noted:
            noted.add(path)
            with open(Path(folder, group), "a") as file:
                file.write(f"{path}\n")

    install(Recorder(note))


def read_settings(folder: Path) -> dict[str, set[str]]:
    """The fields that the units of each group have read so far."""
    return {file.name: set(file.read_text().split()) for file in folder.iterdir()}
