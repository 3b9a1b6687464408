"""Runs `agentrl` commands for the demo and the tour, in a home directory of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from agentrl.cli.suggested_commands import aimed
from agentrl.errors import ExitCode

_PROGRAM = Path(sys.executable).with_name("agentrl")


class DemoError(Exception):
    """A step of the demo failed. The message is a sentence."""


class Operator:
    """Runs `agentrl` commands and reads their answers."""

    def __init__(self, console: Console, home: Path, run: str = "demo") -> None:
        self._console = console
        self._home = home
        self._run = run
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")} | {
            "AGENTRL_HOME": str(home / "state"),
            "AGENTRL_RUN_NAME": run,
        }

    def types(self, *arguments: str, allow: tuple[ExitCode, ...] = (ExitCode.OK,), quiet: bool = False) -> Any:
        """Runs a command with `--json` and returns its answer. Raises DemoError if it fails."""
        if not quiet:
            self._console.print(
                f"[bold]$ agentrl {escape(shlex.join(arguments))}[/bold]", highlight=False, soft_wrap=True
            )
        done = subprocess.run(
            [str(_PROGRAM), *arguments, "--json"],
            env=self._environ,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode not in allow:
            raise DemoError(f"agentrl {shlex.join(arguments)} ended with {done.returncode}: {_said(done)}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def as_typed(self, text: str) -> str:
        """The text with its commands as the user has to type them, because the run has its own home directory."""
        aim = f"--run {self._run}"
        pattern = rf"\bagentrl (?=[a-z]+(?: [a-z]+)? {re.escape(aim)}\b)"
        return re.sub(pattern, lambda found: f"AGENTRL_HOME={self._home / 'state'} {found[0]}", aimed(text, aim))

    def status(self) -> Any:
        return self.types("status", quiet=True)

    def unit(self, name: str) -> Any:
        found = [unit for unit in self.status()["units"] if unit["unit"] == name]
        if not found:
            raise DemoError(f"{name} is not in the status of the run.")
        return found[0]

    def kill(self, pid: int, name: str) -> float:
        """Kills a process. Returns the time."""
        self._console.print(f"[bold]$ kill -9 {pid}[/bold]  # {name}", highlight=False)
        killed_at = time.time()
        os.kill(pid, signal.SIGKILL)
        return killed_at

    def kill_unit(self, before: Any) -> tuple[Any, float]:
        """Kills a unit. Returns its row when its replacement is ready, and the time of the kill."""
        name = before["unit"]
        killed_at = self.kill(before["pid"], name)

        def replaced() -> Any:
            unit = self.unit(name)
            return unit if unit["incarnation"] > before["incarnation"] and unit["state"] == "ready" else None

        return self.until(f"{name} is replaced", replaced), killed_at

    def down(self, say: Callable[[str], None]) -> None:
        """Takes the run down. Raises DemoError if a process is left."""
        proof = self.types("down", "--yes", allow=(ExitCode.OK, ExitCode.NOT_PROVEN))
        for line in proof["lines"]:
            say(line)
        if proof["left"]:
            raise DemoError(f"Something is left: {'; '.join(proof['left'])}")

    def until(self, what: str, condition: Callable[[], Any], within_s: float = 60.0) -> Any:
        """Polls a condition. Raises DemoError if it does not hold in time."""
        deadline = time.monotonic() + within_s
        while not (seen := condition()):
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: not within {within_s:g} s.")
            time.sleep(0.1)
        return seen


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The message of an error document."""
    try:
        error = json.loads(done.stdout)["error"]
        return f"{error['message']} {error['hint']}".strip()
    except (ValueError, KeyError, TypeError):
        return (done.stderr or done.stdout).strip()


@contextmanager
def own_home(kept: Path | None = None) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A directory for all files of the demo, and a function that keeps it. Without a call it is removed at the end,
    unless the caller named it.
    """
    home = kept or Path(tempfile.mkdtemp(prefix="agentrl-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    stays = [kept] if kept is not None else []
    try:
        yield home.resolve(), lambda: stays.append(home)
    finally:
        if not stays:
            shutil.rmtree(home, ignore_errors=True)


def failed_sentence(operator: Operator, failed: DemoError, home: Path) -> Text:
    """The error and the place of the files, without line breaks, so that it can be copied."""
    left = f"Its files and logs are in {home}; rm -r {home} removes them."
    return Text.assemble(("The demo failed.", "red"), f" {operator.as_typed(str(failed))}\n{left}")
