"""Runs the training demo: a small agent learns while you watch. `make demo`, or `python -m assets.train_demo`.

Invariants:
- The demo uses only commands that a person could type, on the run of `assets/train.yaml`.
- The demo does not touch the user's own state.
- The demo always takes the run down at the end, also after Ctrl-C, and reports the proof that no process is left.
- The demo exits with 0 only if the agent learned (on held-out orders), the killed sampler was replaced, a failed call
  was replayed and its record forked, and the accounts balance.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.client.blocking import BlockingClient
from agentrl.client.client import Client
from agentrl.config.load import load_config
from agentrl.errors import ExitCode
from agentrl.protocol.rows import UnitRow, UnitState
from assets import shop_dataset
from assets.demo_display import Screen, Show
from assets.demo_operator import DemoError, Operator, failed_sentence, own_home
from assets.failed_call import Forked, replay_and_fork
from assets.training_state import Figures, RunStore

NAME = "shop"
KNOB, TIGHT = "bound", 1
ENOUGH, GAIN = 0.8, 0.3
"""The held-out reward that the agent has to reach, and how far above the warm-up's."""
KILL_AT = 0.6
"""Share of the steps after which the sampler is killed."""
WITHIN_S = 1800.0
LOOK_EVERY_S = 2.0


@dataclass(slots=True)
class Result:
    """The result of the demo."""

    before: float = 0.0
    """Held-out reward after the warm-up."""
    after: float = 0.0
    held_out: dict[int, float] = field(default_factory=dict)
    """The held-out reward by version."""
    reached_s: float | None = None
    """Seconds from `up` to the first evaluation that was good enough."""
    wall_s: float = 0.0
    """Seconds from `up` to the end of training."""
    steps: int = 0
    trained_records: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    recoveries: dict[str, float] = field(default_factory=dict)
    """Seconds after the kill of the sampler, by event."""
    forked: Forked | None = None
    """The outcome of a failed tool call that was replayed, and whose record was forked."""
    problems: list[str] = field(default_factory=list)
    """The sums of the accounts that do not agree."""

    @property
    def learned(self) -> bool:
        return self.after >= ENOUGH and self.after - self.before > GAIN


class TrainingDemo:
    """The steps of the demo."""

    def __init__(self, console: Console, home: Path, random_number: int) -> None:
        self._console = console
        self.home = home
        self._random = random_number
        self.operator = Operator(console, home, NAME)
        self._state_dir = home / "state" / NAME
        self._store = RunStore(home / "runs" / NAME, self._state_dir)
        self._client: BlockingClient | None = None
        self._file = home / "assets" / "train.yaml"
        self._began = 0.0
        self.result = Result()
        self._is_down = False

    def run(self) -> None:
        self._prepare()
        self._begin()
        with self._screen.shown() as show:
            self._until("the first weights", show, lambda now: now.version is not None)
            self._until("steps", show, lambda now: now.committed >= KILL_AT * self._steps)
        self._kill_sampler()
        self._tighten()
        self.result.forked = replay_and_fork(self.operator, self._says)
        with self._screen.shown() as show:
            self._until("the end of training", show, lambda now: self._is_over())
        self._conclude()

    # ---- steps ----

    def _prepare(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with resources.as_file(resources.files("assets").joinpath("train.yaml")) as file:
            shutil.copyfile(file, self._file)
        shop_dataset.write(self.home / "runs" / "shop-data", random_number=self._random)
        self._steps = load_config(self._file, environ={}).config.training.steps
        self._screen = Screen(self._console, self._steps)
        self._says("A small model learns to price orders with two tools. 3 of 100 tool calls fail on purpose.")
        self._says(
            "First it imitates demonstrations (warm-up), most of which stop too early; then it learns by reward."
        )
        self._says("`held out v11 0.92` is the reward of version 11 on orders that it never trains on.")

    def _begin(self) -> None:
        self._began = time.monotonic()
        # The demo does not wait here, because the trainer is ready only after its warm-up, which the demo shows.
        chance = f"training.random={self._random}"
        self.operator.types("up", str(self._file), "--set", chance, "--yes", "--no-wait")
        self._says(f"To watch from another terminal: AGENTRL_HOME={self.home / 'state'} agentrl tui")
        self._client = BlockingClient(Client.connect(NAME, state_dir=self._state_dir))

    def _kill_sampler(self) -> None:
        after, killed_at = self.operator.kill_unit(self.operator.unit("sampler-0"))
        life = f"sampler-0.{after['incarnation']}"
        self.operator.until("it has an episode", lambda: self._store.has_claimed(life))
        self.result.recoveries = {
            "a new sampler was ready": after["ready_at"] - killed_at,
            "it had episodes": time.time() - killed_at,
        }
        for what, seconds in self.result.recoveries.items():
            self._says(f"{seconds:.1f} s after the kill {what}.")

    def _tighten(self) -> None:
        preview = self.operator.types("tune", KNOB, str(TIGHT), "--preview")
        self._says(_what_it_would_do(preview))
        self.operator.types("tune", KNOB, str(TIGHT), "--note", "the demo shows it", "--yes")

    def _conclude(self) -> None:
        now = self._store.look()
        if len(now.held_out) < 2:
            raise DemoError(f"Evaluations before and after training were expected, but there are only {now.held_out}.")
        result, account = self.result, self._store.account()
        result.held_out = now.held_out
        result.before, result.after = now.held_out[min(now.held_out)], now.held_out[max(now.held_out)]
        result.wall_s = time.monotonic() - self._began
        result.steps, result.trained_records = now.committed, account.trained_records
        result.tool_calls, result.tool_errors = now.tool_calls, now.tool_errors
        result.problems = [problem.sentence() for problem in account.problems]
        self._console.print(_summary(result))
        for problem in result.problems:
            self._says(problem)
        self._down()
        if not account.balanced:
            raise DemoError("The accounts do not balance.")
        if not result.learned:
            raise DemoError(
                f"On held-out orders the agent went from {result.before:.2f} to {result.after:.2f}; it should have "
                f"reached {ENOUGH} and gained more than {GAIN}."
            )

    def close(self) -> None:
        """Closes the connections to the run, which may be gone already."""
        self._store.close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _down(self) -> None:
        self.close()
        self.operator.down(self._says)
        self._is_down = True

    def take_down(self) -> None:
        """Takes the run down if it is not down yet, and prints its remaining processes."""
        self.close()
        if self._is_down or not self._began:
            return
        proof = self.operator.types("down", "--now", "--yes", allow=tuple(ExitCode), quiet=True)
        for line in (proof or {}).get("lines", ()):
            self._says(line)

    # ---- watching ----

    def _until(self, what: str, show: Show, over: Callable[[Figures], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while True:
            now = self._store.look()
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
        """The row of the trainer; None while the run is starting."""
        assert self._client is not None, "the run is up"
        row = self._client.snapshot().rows.get("unit/trainer-0")
        return row if isinstance(row, UnitRow) else None

    def _is_over(self) -> bool:
        trainer = self._trainer()
        return trainer is not None and trainer.state is UnitState.STOPPED

    def _note(self, now: Figures) -> None:
        if self.result.reached_s is None and any(mean >= ENOUGH for mean in now.held_out.values()):
            self.result.reached_s = time.monotonic() - self._began

    def _says(self, text: str) -> None:
        # No line breaks in text that may be copied.
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)


def _summary(result: Result) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    reached = "not seen" if result.reached_s is None else f"first measured {result.reached_s:.0f} s after `up`"
    held_out = ", ".join(f"v{version}: {mean:.2f}" for version, mean in result.held_out.items())
    for name, value in (
        ("held-out reward", f"{result.before:.2f} after the warm-up, {result.after:.2f} after {result.steps} steps"),
        ("all evaluations", held_out),
        (f"held-out reward of {ENOUGH}", reached),
        ("wall time", f"{result.wall_s:.0f} s, warm-up included"),
        ("trained", f"{result.trained_records} records"),
        ("tool calls", f"{result.tool_calls}, of which {result.tool_errors} failed for infrastructure"),
        *_forked(result.forked),
        ("accounting", "; ".join(result.problems) or "every task, record and step is accounted for"),
        *((f"recovery: {what}", f"{took:.1f} s") for what, took in result.recoveries.items()),
    ):
        table.add_row(name, value)
    return table


def _forked(forked: Forked | None) -> list[tuple[str, str]]:
    if forked is None:
        return []
    mean = sum(forked.scores) / len(forked.scores) if forked.scores else 0.0
    came = f"{len(forked.scores)} of {len(forked.statuses)} scored, {mean:.2f} on average"
    return [("a failed call", f"replayed: {forked.verdict}; {forked.kind} of its record: {came}")]


def _what_it_would_do(preview: Any) -> str:
    effect = preview["effect"]
    return f"It would change {', '.join([*effect['changes'], *effect['loses']])}; that is {preview['tier']}."


@contextmanager
def _taken_down(demo: TrainingDemo) -> Iterator[None]:
    """Takes the run down at the end, even after an error. SIGTERM and SIGHUP act like Ctrl-C."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = [signal.signal(number, _interrupt) for number in numbers]
    try:
        yield
    finally:
        # A second signal, to this process or to its commands, would leave processes of the run behind.
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        demo.take_down()
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)


def _interrupt(number: int, _frame: object) -> None:
    print(file=sys.stderr)  # the terminal has written ^C
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m assets.train_demo", description="A small agent learns.")
    parser.add_argument("--random", type=int, default=0, help="seed of data, weights and sampling")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep data, logs, weights and the database there")
    parser.add_argument("--json", action="store_true", help="the result as one document on stdout, the rest on stderr")
    given = parser.parse_args()
    console = Console(stderr=given.json)
    if given.keep is None:
        console.print("Its files are removed if it succeeds. To keep them: make demo ARGS='--keep DIR'", soft_wrap=True)
    with own_home(given.keep) as (home, keep):
        demo = TrainingDemo(console, home, given.random)
        code = _run(demo, console)
        if code == 1:
            keep()
        if code == 0:
            for line in _how_to_go_on(home if given.keep else None):
                console.print(Text(line), soft_wrap=True)
        if given.json:
            document = dataclasses.asdict(demo.result) | {"learned": demo.result.learned, "exit_code": int(code)}
            print(json.dumps(document))
    return code


def _run(demo: TrainingDemo, console: Console) -> int:
    try:
        with _taken_down(demo):
            demo.run()
    except DemoError as failed:
        console.print(failed_sentence(demo.operator, failed, demo.home), highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; the run was taken down.")
        return ExitCode.INTERRUPTED
    console.print("[green]It learned.[/green]")
    return 0


def _how_to_go_on(kept: Path | None) -> list[str]:
    """The next commands for the user."""
    by_hand = "The top of assets/train.yaml shows the same by hand; `agentrl tui` is the console of a live run."
    if kept is None:
        return [by_hand, "`agentrl tui --playback @demo` plays a recorded demo."]
    here = f"AGENTRL_HOME={kept / 'state'}"
    return [
        by_hand,
        f"To play the recording of this demo: {here} agentrl tui --playback {NAME}",
        f"To read its records: {here} agentrl up --run {NAME} --read-only",
    ]


if __name__ == "__main__":
    sys.exit(main())
