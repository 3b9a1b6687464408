"""Writes the rows of a table, whole trajectories, or a picture of the screen to files.

Invariants:
- The rows are those on the screen at the key press.
- An existing file is never overwritten.
- An export that fails reports how many records it has written.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from agentrl.client import long_answers
from agentrl.client.lines_file import LinesFile
from agentrl.config import typed_paths
from agentrl.errors import AgentrlError
from agentrl.formatting.amounts import counted, size
from tui.console_interface import Host, work
from tui.dialogs.form import Field, Form, Question, Values
from tui.model import export_formats
from tui.model.styled_text import Tone

TRAJECTORY_FORMATS = (".jsonl",)


class Exporter:
    def __init__(self, console: Host) -> None:
        self._console = console

    def ask_for_rows(self, name: str, rows: Sequence[Any]) -> None:
        """Ask for a file and write the rows of a table to it."""
        kept = list(rows)
        self._ask(counted(len(kept), "rows"), name, tuple(export_formats.FORMATS), lambda path: self._write(path, kept))

    def ask_for_trajectories(self, filter: str) -> None:
        """Ask for a file and write the trajectories of a filter to it."""

        def begin(path: Path) -> None:
            self._console.run_worker(
                work(self._write_trajectories, path, filter), name="export", group="export", exclusive=True
            )

        which = f"records with {filter}" if filter else "all records"
        self._ask(f"Whole trajectories of {which}", "trajectories", TRAJECTORY_FORMATS, begin)

    def do_screenshot(self) -> None:
        if self._in_browser():
            return
        self.draw(self._path("screen", ".svg"))

    def draw(self, path: Path) -> None:
        try:
            path.write_text(self._console.export_screenshot())
        except OSError as error:
            self._console.report(f"{path}: {error.strerror}.", Tone.BAD)
        else:
            self._console.report(f"The picture is in {path}")

    def _in_browser(self) -> bool:
        """A page would write files on the host of the console, not of the browser."""
        if self._console.settings.in_browser:
            self._console.say("A browser page writes no files. Use the console in a terminal.", Tone.WARN)
        return self._console.settings.in_browser

    def _path(self, name: str, suffix: str) -> Path:
        return Path.cwd() / f"{self._console.mirror.name or 'run'}-{name}-{time.strftime('%H%M%S')}{suffix}"

    def _ask(self, title: str, name: str, formats: Iterable[str], then: Callable[[Path], None]) -> None:
        known = tuple(formats)
        if self._in_browser():
            return

        def check(values: Values) -> str:
            return export_formats.wrong_with(values[0], known) or _refusal(typed_paths.path_of(values[0].strip()))

        def answered(values: Values | None) -> None:
            if values is not None:
                then(typed_paths.path_of(values[0].strip()).absolute())

        field = Field(
            "file", str(self._path(name, known[0])), f"its suffix decides the format: {' '.join(known)}", replaced=True
        )
        self._console.push_screen(Form(Question(title, (), (field,), "write it", check)), answered)

    def _write(self, path: Path, rows: Iterable[Any]) -> None:
        body = export_formats.FORMATS[path.suffix.lower()](rows)
        try:
            with path.open("x") as file:
                file.write(body)
        except OSError as error:
            self._console.report(f"{path}: {error.strerror}.", Tone.BAD)
            return
        self._console.report(f"{path} has {counted(len(list(rows)), 'rows')}")

    async def _write_trajectories(self, path: Path, filter: str) -> None:
        console, records, written = self._console, 0, 0
        try:
            with LinesFile(path, "x") as file:
                async for lines in long_answers.exported(console.connection.client, filter=filter):
                    await asyncio.to_thread(file.write, lines.data)
                    records, written = records + lines.records, written + len(lines.data)
                    console.report(f"{counted(records, 'records')} so far, {size(written)}")
        except OSError as error:
            has = f" has {counted(records, 'records')}; then" if records else ""
            console.report(f"{path}{has}: {error.strerror}.", Tone.BAD)
        except AgentrlError as error:
            console.report(f"{path} has {counted(records, 'records')}; then: {error}", Tone.BAD)
        else:
            console.report(f"{path} has {counted(records, 'records')}, {size(written)}")


def _refusal(path: Path) -> str:
    """Why a file cannot be made there; empty if it can."""
    try:
        if path.exists():
            return "This file exists already."
        if not path.parent.is_dir():
            return f"There is no directory {path.parent}."
    except OSError as error:
        return f"{path}: {error.strerror}."
    return "" if os.access(path.parent, os.W_OK) else f"{path.parent} is not writable."
