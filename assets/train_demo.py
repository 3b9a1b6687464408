"""A small agent learns while you watch: `make demo`, or `python -m assets.train_demo`.

Invariants: everything is done through the commands that a person would type, on the run that `assets/train.yaml`
describes; nothing of the user's own state is touched; whatever happens, the run is taken down at the end. It ends with
0 only if the agent learned (on orders that it never saw), what was killed came back, and the accounts balance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from agentrl.client.blocking import BlockingClient
from agentrl.client.core import Client
from agentrl.config.load import load_config
from agentrl.errors import ExitCode
from agentrl.protocol.rows import UnitRow, UnitState
from assets import shopdata
from assets.demo import DemoError, Operator
from assets.train_figures import Books, Figures, sparkline

NAME = "shop"
KNOB, TIGHT = "bound", 1
ENOUGH, GAIN = 0.8, 0.3
"""The held-out reward that the agent has to reach, and how far above the warm-up's."""
KILL_AT = 0.6
"""Of the steps."""
WITHIN_S = 1800.0
LOOK_EVERY_S = 2.0
TOLD_EVERY_S = 10.0
"""Without a terminal: one line in so many seconds."""

Show = Callable[[UnitRow | None, Figures], None]


class TrainingDemo:
    """The acts, in the order in which they are shown."""

    def __init__(self, console: Console, home: Path, random_number: int) -> None:
        self._console = console
        self._home = home
        self._random = random_number
        self.operator = Operator(console, home, NAME)
        self._state_dir = home / "state" / NAME
        self._books = Books(home / "runs" / NAME, self._state_dir)
        self._client: BlockingClient | None = None
        self._file = home / "assets" / "train.yaml"
        self._began = 0.0
        self._reached_at: float | None = None
        self._recoveries: list[tuple[str, float]] = []
        self._last = (0.0, 0, 0.0)
        """When tokens were last counted, how many there were, and how many a second since the time before."""
        self._told_at = 0.0

    def run(self) -> None:
        self._prepare()
        self._begin()
        with self._shown() as show:
            self._until("the first weights", show, lambda now: now.version is not None)
            self._until("steps", show, lambda now: now.committed >= KILL_AT * self._steps)
        self._kill_sampler()
        self._tighten()
        with self._shown() as show:
            self._until("the end of training", show, lambda now: self._is_over())
        self._conclude()

    # ---- acts ----

    def _prepare(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with resources.as_file(resources.files("assets").joinpath("train.yaml")) as file:
            shutil.copyfile(file, self._file)
        shopdata.write(self._home / "runs" / "shop-data", random_number=self._random)
        self._steps = load_config(self._file, environ={}).config.training.steps
        self._says("Orders to be priced and demonstrations are written; most demonstrations stop too early.")

    def _begin(self) -> None:
        self._began = time.monotonic()
        # Without waiting: the trainer is ready after its warm-up, and there is something to be seen before.
        chance = f"training.random={self._random}"
        self.operator.types("up", str(self._file), "--set", chance, "--yes", "--no-wait")
        self._client = BlockingClient(Client.connect(NAME, state_dir=self._state_dir))

    def _kill_sampler(self) -> None:
        before = self.operator.unit("sampler-0")
        self._console.print(f"[bold]$ kill -9 {before['pid']}[/bold]  # sampler-0", highlight=False)
        killed_at = time.time()
        os.kill(before["pid"], signal.SIGKILL)

        def replaced() -> Any:
            unit = self.operator.unit("sampler-0")
            return unit if unit["incarnation"] > before["incarnation"] and unit["state"] == "ready" else None

        after = self.operator.until("sampler-0 is replaced", replaced)
        life = f"sampler-0.{after['incarnation']}"
        self.operator.until("it has an episode", lambda: self._books.has_claimed(life))
        self._recoveries = [
            ("a new sampler was ready", after["ready_at"] - killed_at),
            ("it had episodes", time.time() - killed_at),
        ]
        for what, seconds in self._recoveries:
            self._says(f"{seconds:.1f} s after the kill {what}.")

    def _tighten(self) -> None:
        preview = self.operator.types("tune", KNOB, str(TIGHT), "--preview")
        self._says(_what_it_would_do(preview))
        self.operator.types("tune", KNOB, str(TIGHT), "--note", "the demo shows it", "--yes")

    def _conclude(self) -> None:
        now = self._books.look()
        if len(now.held_out) < 2:
            raise DemoError(f"There should be evaluations from before and after, but there are {now.held_out}.")
        first, last = min(now.held_out), max(now.held_out)
        before, after = now.held_out[first], now.held_out[last]
        account = self._books.account()
        self._console.print(self._summary(now, before, after, account.trained_records))
        for problem in account.problems:
            self._says(problem.sentence())
        self._down()
        if not account.balanced:
            raise DemoError("The accounts do not balance.")
        if after < ENOUGH or after - before <= GAIN:
            raise DemoError(
                f"On held-out orders the agent went from {before:.2f} to {after:.2f}; it should have reached "
                f"{ENOUGH} and gained more than {GAIN}."
            )

    def _summary(self, now: Figures, before: float, after: float, trained: int) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2))
        seconds = time.monotonic() - self._began
        reached = "not seen" if self._reached_at is None else f"{self._reached_at:.0f} s"
        for name, value in (
            ("held-out reward", f"{before:.2f} after the warm-up, {after:.2f} after {now.committed} steps"),
            ("all evaluations", ", ".join(f"v{version}: {mean:.2f}" for version, mean in now.held_out.items())),
            (f"held-out reward of {ENOUGH}", f"first measured {reached} after `up`"),
            ("wall time", f"{seconds:.0f} s, warm-up included"),
            ("trained", f"{trained} records"),
            ("tool calls", f"{now.tool_calls}, of which {now.tool_errors} failed for infrastructure and did not train"),
            *((f"recovery: {what}", f"{took:.1f} s") for what, took in self._recoveries),
        ):
            table.add_row(name, value)
        return table

    def close(self) -> None:
        """Let go of the run; it may be gone already."""
        self._books.close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _down(self) -> None:
        self.close()
        proof = self.operator.types("down", "--yes", allow=(ExitCode.OK, ExitCode.NOT_PROVEN))
        for line in proof["lines"]:
            self._says(line)
        if proof["left"]:
            raise DemoError(f"Something is left: {'; '.join(proof['left'])}")

    # ---- watching ----

    def _until(self, what: str, show: Show, over: Callable[[Figures], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while True:
            now = self._books.look()
            trainer = self._trainer()
            self._note(now)
            show(trainer, now)
            if over(now):
                return
            if trainer is not None and trainer.state in (UnitState.FATAL, UnitState.STOPPED):
                raise DemoError(f"The trainer is {trainer.state}: {trainer.reason}")
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: not within {WITHIN_S:g} s.")
            time.sleep(LOOK_EVERY_S)

    def _trainer(self) -> UnitRow | None:
        """Its row; while the run is starting there may be none."""
        assert self._client is not None, "the run is up"
        row = self._client.snapshot().rows.get("unit/trainer-0")
        return row if isinstance(row, UnitRow) else None

    def _is_over(self) -> bool:
        trainer = self._trainer()
        return trainer is not None and trainer.state is UnitState.STOPPED

    def _note(self, now: Figures) -> None:
        if self._reached_at is None and any(mean >= ENOUGH for mean in now.held_out.values()):
            self._reached_at = time.monotonic() - self._began
        at, tokens, _ = self._last
        seconds = time.monotonic() - at
        if seconds >= 2.0:
            rate = (now.tokens - tokens) / seconds if at else 0.0
            self._last = (time.monotonic(), now.tokens, rate)

    @contextmanager
    def _shown(self) -> Iterator[Show]:
        """A picture that stays in its place; without a terminal, a line now and then."""
        if not self._console.is_terminal:
            yield self._tell
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            yield lambda trainer, now: live.update(self._picture(trainer, now))

    def _picture(self, trainer: UnitRow | None, now: Figures) -> Group:
        table = Table(box=None, show_header=False, padding=(0, 2))
        for name, value in self._lines(trainer, now):
            table.add_row(name, value)
        return Group(ProgressBar(total=self._steps, completed=now.committed, width=60), table)

    def _tell(self, trainer: UnitRow | None, now: Figures) -> None:
        if time.monotonic() - self._told_at >= TOLD_EVERY_S:
            self._told_at = time.monotonic()
            seconds = time.monotonic() - self._began
            said = "; ".join(f"{name} {value}" for name, value in self._lines(trainer, now) if value)
            self._says(f"{seconds:4.0f} s  {said}")

    def _lines(self, trainer: UnitRow | None, now: Figures) -> list[tuple[str, str]]:
        recent = now.rewards[-5:]
        reward = f"{sum(recent) / len(recent):.2f} {sparkline(now.rewards)}" if recent else ""
        held_out = ", ".join(f"v{version} {mean:.2f}" for version, mean in now.held_out.items())
        return [
            ("trainer", "" if trainer is None else trainer.status or trainer.state),
            ("version", "" if now.version is None else str(now.version)),
            ("step", f"{now.committed} of {self._steps}"),
            ("reward", reward),
            ("held out", held_out),
            ("staleness", "" if now.staleness is None else f"{now.staleness:.2f} publications"),
            ("tokens/s", f"{self._last[2]:.0f}" if now.tokens else ""),
            ("tool errors", f"{now.tool_errors} of {now.tool_calls}" if now.tool_calls else ""),
        ]

    def _says(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, markup=False)


def _what_it_would_do(preview: Any) -> str:
    effect = preview["effect"]
    return f"It would change {', '.join([*effect['changes'], *effect['loses']])}; that is {preview['tier']}."


@contextmanager
def _home(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="agentrl-demo-") as made:
        yield Path(made)


@contextmanager
def _taken_down(demo: TrainingDemo) -> Iterator[None]:
    """Whatever happens inside, nothing of the run is left behind."""
    try:
        yield
    finally:
        demo.close()
        demo.operator.types("down", "--now", "--yes", allow=tuple(ExitCode), quiet=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m assets.train_demo", description="A small agent learns.")
    parser.add_argument("--random", type=int, default=0, help="the number that data, weights and sampling follow from")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep data, logs, weights and the database there")
    given = parser.parse_args()
    console = Console()
    with _home(given.keep) as home:
        demo = TrainingDemo(console, home, given.random)
        try:
            with _taken_down(demo):
                demo.run()
        except DemoError as failed:
            console.print(f"[red]The demo failed.[/red] {failed}", highlight=False)
            return 1
        except KeyboardInterrupt:
            console.print("Interrupted; the run was taken down.")
            return ExitCode.INTERRUPTED
    console.print("[green]It learned.[/green] The same by hand stands at the top of assets/train.yaml.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
