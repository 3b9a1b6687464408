"""Measures the time from `up`, with the warm-up, until the demo's agent prices held-out orders correctly.

Each seed gives different data, weights and samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from assets.train_demo import ENOUGH
from tests.benchmarks.report import Outcome, median

SEEDS = "BENCH_SEEDS"
WITHIN_S = 300.0


def measure() -> Outcome:
    numbers = range(int(os.environ.get(SEEDS, "1")))
    results = [_demo(number) for number in numbers]
    outcome = Outcome(f"the demo, {len(results)} times: {results[0]['steps']} steps after a warm-up")
    learned = [one for one in results if one["learned"]]
    reached = [one["reached_s"] for one in learned if one["reached_s"] is not None]
    outcome.at_most("runs that did not learn", len(results) - len(learned), "", 0)
    if reached:
        outcome.at_most(f"until a held-out reward of {ENOUGH}, median", median(reached), "s", WITHIN_S)
        outcome.plain("slowest", max(reached), "s")
    outcome.plain("held-out reward, lowest", min(one["after"] for one in results), "")
    outcome.plain("held-out reward after the warm-up, highest", max(one["before"] for one in results), "")
    outcome.plain("the whole run, median", median([one["wall_s"] for one in results]), "s")
    return outcome


def _demo(number: int) -> dict[str, Any]:
    print(f"the demo with the number {number}", file=sys.stderr)
    command = [sys.executable, "-m", "assets.train_demo", "--random", str(number), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    results: dict[str, Any] = json.loads(done.stdout)
    if not results["steps"]:
        raise RuntimeError(f"the demo ended with {done.returncode} before it had trained")
    return results
