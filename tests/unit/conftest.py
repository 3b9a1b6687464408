"""A fake coordinator, and unit processes that end with the test."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.unit.fake_coordinator import Counterpart, Process

Start = Callable[..., Process]


@pytest.fixture
async def counterpart() -> AsyncIterator[Counterpart]:
    # Not tmp_path: socket paths are short.
    with tempfile.TemporaryDirectory(prefix="unit-") as directory:
        other = Counterpart(Path(directory))
        other.start()
        yield other
        other.close()


@pytest.fixture
async def start(counterpart: Counterpart) -> AsyncIterator[Start]:
    """`start(program)` runs source text as a unit, `start("-m", NAME, ...)` a module."""
    processes: list[Process] = []

    def run(*arguments: str, supervised: bool = True) -> Process:
        if len(arguments) == 1:
            program = counterpart.directory / "program.py"
            program.write_text(textwrap.dedent(arguments[0]))
            arguments = (str(program),)
        processes.append(Process(counterpart, arguments, supervised=supervised))
        return processes[-1]

    yield run
    for process in processes:
        process.close()
