"""Shows a tour of the control plane on a live run: `make tour`, or `python -m assets.tour`.

Invariants:
- The tour uses only commands that a person could type.
- The tour does not touch the user's own state.
- The tour always takes its two runs down at the end.
- The tour exits with 1 if a step fails.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentrl.errors import ExitCode
from assets import shop_dataset
from assets.demo_operator import DemoError, Operator, failed_sentence, own_home
from assets.failed_call import replay_and_fork

KNOB = "supervision.dead_after_s"
STEPS = 10
TRAINING = "shop"
WARMUP_STEPS = 60
"""Few: the model has to write calls, not to price orders."""


class Demo:
    """The steps of the tour."""

    def __init__(self, console: Console, progress: Progress, home: Path) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("", total=STEPS)
        self._home = home
        self.operator = Operator(console, home)
        self.training = Operator(console, home, TRAINING)

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
            ("Bringing a training run up: its model imitates demonstrations first", self._up_training),
            ("Replaying a failed tool call, and forking its record", self._replay),
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

    def _up_training(self) -> None:
        folder = self._home / "training"
        folder.mkdir()
        with resources.as_file(resources.files("assets").joinpath("train.yaml")) as file:
            shutil.copyfile(file, folder / "train.yaml")
        shop_dataset.write(self._home / "runs" / "shop-data", random_number=0)
        few = f"training.warmup.steps={WARMUP_STEPS}"
        begin = time.monotonic()
        self.training.types("up", str(folder / "train.yaml"), "--set", few, "--yes")
        self._says(f"It trains after {time.monotonic() - begin:.0f} s.")

    def _replay(self) -> None:
        forked = replay_and_fork(self.training, self._says)
        self.training.types("records", "show", forked.call.rpartition("/")[0])
        self._says("`agentrl records show` names the forks of a record, and the base of a fork.")
        self.training.down(self._says)


def _steady(status: Any) -> list[Any]:
    """The units that the tour does not kill."""
    return [unit for unit in status["units"] if unit["group"] != "flaky"]


def _ms(seconds: float) -> str:
    return f"{max(0.0, seconds) * 1000:.0f} ms"


@contextmanager
def _taken_down(demo: Demo) -> Iterator[None]:
    """Takes the runs down at the end, even after an error."""
    try:
        yield
    finally:
        for operator in (demo.operator, demo.training):
            operator.types("down", "--now", "--yes", allow=tuple(ExitCode), quiet=True)


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
