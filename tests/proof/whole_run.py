"""The demo's run with all its processes, quiet or with a `kill -9` every 20 seconds.

`python -m tests.proof.whole_run SEED MODEL [--kills]` prints one JSON document: the held-out reward after the last
step, the kills, and whether the accounts balance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from assets.training_state import RunStore
from tests.benchmarks.cleanup import MARK
from tests.benchmarks.one_process import shop_run
from tests.benchmarks.overhead import up
from tests.proof.arms import SAMPLED

EVERY_S = 20.0
WITHIN_S = 900.0
LOOK_EVERY_S = 0.5
KILLED = (
    "daemons.trainer",
    "daemons.sampler",
    "daemons.engine",
    "daemons.toolbox",
    "daemons.steward",
    "daemons.coordinator",
)


def result_of(seed: int, model: Path, steps: int, *, kills: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="proof-") as name:
        folder = Path(name)
        shop_run(folder, seed)
        file = _written(folder, model, steps, seed)
        chance = random.Random(seed)
        killed: list[str] = []
        began = at = time.monotonic()
        with up(folder, file) as store:
            while not _is_over(store, steps):
                if time.monotonic() - began > WITHIN_S:
                    raise TimeoutError(f"step {steps} was not evaluated within {WITHIN_S:g} s")
                if kills and time.monotonic() - at >= EVERY_S and store.trained()[0]:
                    at = time.monotonic()
                    killed += _kill_one(chance)
                time.sleep(LOOK_EVERY_S)
            took_s, figures, account = time.monotonic() - began, store.look(), store.account()
    newest = max(figures.held_out)
    return {
        "held_out": figures.held_out[newest],
        "seconds": round(took_s, 1),
        "killed": killed,
        "balanced": account.balanced,
        "trained_records": figures.trained_records,
    }


def _written(folder: Path, model: Path, steps: int, seed: int) -> Path:
    file = folder / "assets" / "train.yaml"
    run = yaml.safe_load(file.read_text())
    run["model"] = {"path": str(model)}
    run["training"] |= {"steps": steps, "warmup": {"steps": 0}, "random": seed, "checkpoint_every": 3}
    run["evaluation"] |= {"every": 1000, "temperature": SAMPLED}
    run["tools"]["shop"]["command"] = "{python} -m assets.shop_server --no-faults"
    file.write_text(yaml.safe_dump(run))
    return file


def _is_over(store: RunStore, steps: int) -> bool:
    return store.trained()[0] >= steps and max(store.look().held_out, default=0) >= steps


def _kill_one(chance: random.Random) -> list[str]:
    """Kill the coordinator or the process of a unit."""
    found = sorted({(name, process.pid): process for name, process in _processes()}.items())
    if not found:
        return []
    (name, _), process = chance.choice(found)
    process.send_signal(signal.SIGKILL)
    return [name.removeprefix("daemons.")]


def _processes() -> Iterator[tuple[str, psutil.Process]]:
    """The processes of this run, with their programs. Processes of units do not inherit our mark, so they are found as
    descendants of the host agent."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) != str(os.getpid()):
                continue
            of_units = process.children(recursive=True) if "daemons.host" in process.cmdline() else []
            for one in (process, *of_units):
                yield from ((word, one) for word in one.cmdline() if word in KILLED)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--kills", action="store_true")
    given = parser.parse_args()
    os.environ[MARK] = str(os.getpid())
    print(json.dumps(result_of(given.seed, given.model, given.steps, kills=given.kills)))


if __name__ == "__main__":
    main()
