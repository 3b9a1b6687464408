"""Measures the overhead of a run: the demo's run compared with one process with the same engine, trainer and tools.

Both start with the same warmed-up weights and are measured between two steps, so that start-up does not count. CPU time
is that of all processes, with the database and the coordinator.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import yaml
from rich.console import Console

from agentrl.config.run import RunConfig
from assets.demo_operator import Operator
from assets.train_demo import NAME
from assets.training_state import RunStore
from tests.benchmarks.cleanup import MARK
from tests.benchmarks.one_process import OneProcess, connected, shop_run
from tests.benchmarks.report import Outcome

FIRST, LAST = 3, int(os.environ.get("BENCH_STEPS", "18"))
"""The measurement lasts from the end of one step to the end of the other."""
LEAST = 0.5
WITHIN_S = 1800.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Spent:
    records: int
    """Trained records."""
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.records / self.wall_s

    @property
    def cpu_ms(self) -> float:
        return 1e3 * self.cpu_s / self.records


def measure() -> Outcome:
    outcome = Outcome(f"the demo's run against one process, steps {FIRST + 1} to {LAST}")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        config = shop_run(folder, 0)
        torch.set_num_threads(config.training.threads)
        one, model = asyncio.run(_in_one_process(config, folder))
        whole = _as_a_run(folder, model)
    outcome.share("trained records", whole.rate, "/s", "one process", one.rate, least=LEAST)
    outcome.within("CPU per trained record", whole.cpu_ms, "ms", "one process", one.cpu_ms, factor=1 / LEAST)
    return outcome


async def _in_one_process(config: RunConfig, folder: Path) -> tuple[Spent, Path]:
    """Returns the cost, and the weights after the warm-up."""
    (server,) = config.tools.values()
    async with connected(server) as tools:
        one = OneProcess(config, folder, tools)
        await one.begin()
        model = folder / "warm"
        one.save(model)
        await one.train(FIRST)
        records, began, cpu = one.story.trained_records, time.monotonic(), _cpu_s([psutil.Process()])
        await one.train(LAST)
        spent = Spent(one.story.trained_records - records, time.monotonic() - began, _cpu_s([psutil.Process()]) - cpu)
        await one.close()
    return spent, model


def _as_a_run(folder: Path, model: Path) -> Spent:
    with up(folder, written(folder, model, LAST)) as store:
        begun = _at_step(store, FIRST)
        ended = _at_step(store, LAST)
    return Spent(*(later - earlier for later, earlier in zip(ended, begun, strict=True)))


def written(folder: Path, model: Path, steps: int) -> Path:
    """The demo's run file for a model that is warmed up."""
    file = folder / "assets" / "train.yaml"
    run = yaml.safe_load(file.read_text())
    run["model"] = {"path": str(model)}
    run["training"] |= {"steps": steps, "warmup": {"steps": 0}}
    del run["environments"]["shop"]["evaluation"]
    file.write_text(yaml.safe_dump(run))
    return file


@contextmanager
def up(folder: Path, file: Path) -> Iterator[RunStore]:
    operator = Operator(Console(stderr=True), folder, NAME)
    store = RunStore(folder / "runs" / NAME, folder / "state" / NAME)
    try:
        operator.types("up", str(file), "--yes", "--no-wait")
        yield store
    finally:
        store.close()
        operator.types("down", "--now", "--yes")


def _at_step(store: RunStore, step: int) -> tuple[int, float, float]:
    """Returns trained records, wall and CPU seconds when this step is committed."""
    deadline = time.monotonic() + WITHIN_S
    # A cheap query, because the observer must not cost the run anything.
    while (trained := store.trained())[0] < step:
        if time.monotonic() > deadline:
            raise TimeoutError(f"step {step} was not committed within {WITHIN_S:g} s")
        time.sleep(LOOK_EVERY_S)
    return trained[1], time.monotonic(), _cpu_s(_of_the_run())


def _of_the_run() -> list[psutil.Process]:
    """Returns the host agent, the ancestor of all processes of the run."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(os.getpid()) and "daemons.host" in process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours:
            found.append(process)
    if not found:
        raise LookupError("the host agent of the run was not found, so its processor time is not known")
    return found


def _cpu_s(roots: list[psutil.Process]) -> float:
    """CPU time of these processes and their living descendants."""
    total = 0.0
    for root in roots:
        for process in (root, *root.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
    return total
