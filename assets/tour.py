"""Shows a tour of the control plane on a live run: `make tour`, or `python -m assets.tour`.

Invariants:
- The tour uses only commands that a person could type.
- The tour does not touch the user's own state.
- The tour always takes the run down at the end.
- The tour exits with 1 if a step fails.
"""

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
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from agentrl.cli.suggested_commands import aimed
from agentrl.errors import ExitCode

KNOB = "supervision.dead_after_s"
STEPS = 8
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
            timeout=120,
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


class Demo:
    """The steps of the tour."""

    def __init__(self, console: Console, progress: Progress, home: Path) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("", total=STEPS)
        self._home = home
        self.operator = Operator(console, home)

    def run(self) -> None:
        for title, step in (
            ("Bringing the run up", self._up),
            ("Looking at it", self._status),
            ("Scaling a group", self._scale),
            ("Killing a unit", self._kill_unit),
            ("Killing the coordinator", self._kill_coordinator),
            ("Changing a knob and changing it back", self._tune),
            ("Asking who waits for whom", self._why),
            ("Taking the run down", lambda: self.operator.down(self._says)),
        ):
            self._progress.update(self._task, description=title)
            step()
            self._progress.advance(self._task)
        self._progress.update(self._task, description="Done")

    def _says(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, markup=False)

    def _up(self) -> None:
        begin = time.monotonic()
        with resources.as_file(resources.files("assets").joinpath("tour.yaml")) as file:
            answer = self.operator.types("up", str(file), "--set", f"dir={self._home / 'run'}", "--yes")
        self._says(f"{len(answer['started'])} units are ready after {time.monotonic() - begin:.1f} s.")

    def _status(self) -> None:
        table = Table("unit", "state", "pid", "since", box=None, padding=(0, 2))
        for unit in self.operator.types("status")["units"]:
            table.add_row(unit["unit"], unit["state"], str(unit["pid"]), unit["reason"])
        self._console.print(table)

    def _scale(self) -> None:
        begin = time.monotonic()
        self.operator.types("scale", "ticker", "+2", "--yes")
        self._says(f"ticker-2 and ticker-3 are ready after {time.monotonic() - begin:.1f} s.")
        effect = self.operator.types("scale", "ticker", "-1", "--yes")["effect"]
        if effect["kills"] or len(effect["drains"]) != 1:
            raise DemoError(f"Scaling down by one should have drained one unit, but did this: {effect}.")
        self._says(f"{effect['drains'][0]} finished what was under way and left.")

    def _kill_unit(self) -> None:
        # Scaling down removes idle units, so any of them may be gone.
        before = next(unit for unit in self.operator.status()["units"] if unit["group"] == "ticker")
        after, killed_at = self.operator.kill_unit(before)
        self._says(f"Its replacement was ready {_ms(after['ready_at'] - killed_at)} after the kill.")
        incident = self.operator.types("events", "--kind", "incident")[-1]
        self._says(incident["what"])

    def _kill_coordinator(self) -> None:
        before = self.operator.status()
        killed_at = self.operator.kill(before["run"]["coordinator_pid"], "the coordinator")

        def adopted() -> Any:
            status = self._status_if_any()
            if status is None or status["run"]["coordinator_pid"] == before["run"]["coordinator_pid"]:
                return None
            units = _steady(status)
            whole = len(units) == len(_steady(before))
            return status if whole and all(unit["state"] == "ready" for unit in units) else None

        after = self.operator.until("the units are adopted", adopted)
        lives = {unit["unit"]: unit["pid"] for unit in _steady(before)}
        if lives != {unit["unit"]: unit["pid"] for unit in _steady(after)}:
            raise DemoError("The death of the coordinator restarted a unit.")
        began = after["run"]["coordinator_started_at"] - killed_at
        self._says(f"A new one was up {_ms(began)} after the kill and adopted all units; none was restarted.")

    def _status_if_any(self) -> Any:
        missing = (ExitCode.NO_COORDINATOR, ExitCode.TIMEOUT)
        answer = self.operator.types("status", allow=(ExitCode.OK, *missing), quiet=True)
        return answer if answer and "run" in answer and "units" in answer else None

    def _tune(self) -> None:
        preview = self.operator.types("tune", KNOB, "30", "--preview")
        self._says(f"It would change {', '.join(preview['effect']['changes'])}; that is {preview['tier']}.")
        self.operator.types("tune", KNOB, "30", "--note", "a slow network", "--yes")
        self._expect_knob(30.0)
        self.operator.types("tune", KNOB, "--undo", "--yes")
        self._expect_knob(20.0)
        self._says("It was changed and changed back; both are in the audit, with name and time.")

    def _expect_knob(self, value: float) -> None:
        row = next(row for row in self.operator.types("tune", quiet=True) if row["name"] == KNOB)
        if row["value"] != value:
            raise DemoError(f"{KNOB} is {row['value']}, not {value}.")

    def _why(self) -> None:
        chains = self.operator.until("a unit waits", lambda: self.operator.types("why", quiet=True)["chains"])
        self._console.print("[bold]$ agentrl why[/bold]", highlight=False)
        for chain in chains[:3]:
            self._says(chain["sentence"])


def _steady(status: Any) -> list[Any]:
    """The units that the tour does not kill."""
    return [unit for unit in status["units"] if unit["group"] != "flaky"]


def _ms(seconds: float) -> str:
    return f"{max(0.0, seconds) * 1000:.0f} ms"


@contextmanager
def _taken_down(demo: Demo) -> Iterator[None]:
    """Takes the run down at the end, even after an error."""
    try:
        yield
    finally:
        demo.operator.types("down", "--now", "--yes", allow=tuple(ExitCode), quiet=True)


def main() -> int:
    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        own_home() as (home, keep),
        Progress(*columns, console=console, transient=not console.is_terminal) as progress,
    ):
        demo = Demo(console, progress, home)
        try:
            with _taken_down(demo):
                demo.run()
        except DemoError as failed:
            keep()
            console.print(failed_sentence(demo.operator, failed, home), highlight=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:
            console.print("Interrupted; the run was taken down.")
            return ExitCode.INTERRUPTED
    console.print("[green]All steps succeeded.[/green] Try it yourself: agentrl up assets/tour.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
