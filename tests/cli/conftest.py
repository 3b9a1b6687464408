"""The command line in a process and a home directory of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.cli.scripted import Scripted


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The only document on stdout."""
        return json.loads(self.out)


@dataclasses.dataclass
class Shell:
    """Runs `agentrl` in an empty home."""

    home: Path
    env: dict[str, str]

    def __call__(self, *arguments: str, expect: int | None = 0, **env: str) -> CommandResult:
        done = preloaded.run(arguments, env={**self.env, **env}, cwd=self.home.parent, timeout=60)
        assert "Traceback" not in done.stderr, done.stderr
        if expect is not None:
            assert done.returncode == expect, (done.stdout, done.stderr)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            env=self.env,
            cwd=self.home.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


PROGRAM = [sys.executable, "-m", "agentrl"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")}
    home = tmp_path / "home"
    home.mkdir()
    return Shell(home, {**kept, "AGENTRL_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "80"})


@pytest.fixture
def coordinator(shell: Shell) -> Iterator[Scripted]:
    with Scripted(shell.home) as scripted:
        yield scripted


@pytest.fixture
def interrupted() -> Callable[[subprocess.Popen[str]], CommandResult]:
    """Send Ctrl-C to a command and wait for its end."""

    def press(process: subprocess.Popen[str]) -> CommandResult:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        return CommandResult(process.returncode, out, err)

    return press
