"""Measures trajectories a second of the demo's run next to those of TRL, from the same weights, tasks and tools.

Both have two cores. TRL calls the tools as functions within its process. The run calls an MCP server, here without the
demo's delays and failures, stores every token and supervises its processes. TRL trains on one batch before it samples
the next. All trajectories that ended count, including those whose group has no signal.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from agentrl.config.run import RunConfig
from assets import shop_dataset
from assets.training_state import RunStore
from tests.benchmarks.one_process import OneProcess, connected, shop_run
from tests.benchmarks.overhead import up, written
from tests.benchmarks.report import Outcome

FIRST, LAST = 3, 30
"""Measured from the end of step FIRST to the end of step LAST."""
LEAST = 1.3
WITHIN_S = 900.0
LOOK_EVERY_S = 0.5
THREADS = 2


class Rate(NamedTuple):
    trajectories: float
    """Trajectories per second."""
    calls: float
    """Tool calls per trajectory."""


def measure() -> Outcome:
    outcome = Outcome(f"the demo's run against TRL, steps {FIRST + 1} to {LAST}")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        config = shop_run(folder, 0)
        torch.set_num_threads(config.training.threads)
        model = asyncio.run(_warmed_up(config, folder))
        trl = _trl(model, folder)
        ours = _run(folder, model)
    outcome.share("trajectories", ours.trajectories, "/s", "TRL", trl.trajectories, LEAST)
    outcome.share("tool calls", ours.trajectories * ours.calls, "/s", "TRL", trl.trajectories * trl.calls, 0)
    return outcome


async def _warmed_up(config: RunConfig, folder: Path) -> Path:
    (server,) = config.tools.values()
    async with connected(server) as tools:
        one = OneProcess(config, folder, tools)
        await one.begin()
        one.save(folder / "warm")
        await one.close()
    return folder / "warm"


def _trl(model: Path, folder: Path) -> Rate:
    data = folder / "runs" / "shop-data" / shop_dataset.TRAIN_FILE
    steps = ["--first", str(FIRST), "--last", str(LAST), "--threads", str(THREADS)]
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.trl_peer", str(model), str(data), *steps]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    if done.returncode:
        raise RuntimeError(f"TRL failed: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Rate(found["trajectories"] / found["wall_s"], found["calls"] / found["trajectories"])


def _run(folder: Path, model: Path) -> Rate:
    file = written(folder, model, LAST)
    run = yaml.safe_load(file.read_text())
    run["tools"]["shop"]["command"] = "{python} -m assets.shop_server --no-faults"
    file.write_text(yaml.safe_dump(run))
    with up(folder, file) as store:
        began, before, calls_before = _at_step(store, FIRST)
        ended, after, calls_after = _at_step(store, LAST - 1)
    made = after - before
    return Rate(made / (ended - began), (calls_after - calls_before) / made)


def _at_step(store: RunStore, step: int) -> tuple[float, int, int]:
    """Wait until this step is committed. Returns the time, the number of ended attempts, and the number of calls."""
    deadline = time.monotonic() + WITHIN_S
    while store.trained()[0] < step:
        if time.monotonic() > deadline:
            raise TimeoutError(f"step {step} was not committed within {WITHIN_S:g} s")
        time.sleep(LOOK_EVERY_S)
    return time.monotonic(), store.ended_attempts(), store.look().tool_calls
