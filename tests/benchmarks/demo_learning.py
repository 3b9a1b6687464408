"""How long the demo takes until its agent prices held-out orders rightly, from `up` on, the warm-up included.

Each number of `--seeds` gives other data, weights and samples. The demo's own display tells how far it is.
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
    told = [_demo(number) for number in numbers]
    outcome = Outcome(f"the demo, {len(told)} times: {told[0]['steps']} steps after a warm-up")
    learned = [one for one in told if one["learned"]]
    reached = [one["reached_s"] for one in learned if one["reached_s"] is not None]
    outcome.at_most("runs that did not learn", len(told) - len(learned), "", 0)
    if reached:
        outcome.at_most(f"until a held-out reward of {ENOUGH}, median", median(reached), "s", WITHIN_S)
        outcome.plain("slowest", max(reached), "s")
    outcome.plain("held-out reward, lowest", min(one["after"] for one in told), "")
    outcome.plain("held-out reward after the warm-up, highest", max(one["before"] for one in told), "")
    outcome.plain("the whole run, median", median([one["wall_s"] for one in told]), "s")
    return outcome


def _demo(number: int) -> dict[str, Any]:
    print(f"the demo with the number {number}", file=sys.stderr)
    command = [sys.executable, "-m", "assets.train_demo", "--random", str(number), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    if not told["steps"]:
        raise RuntimeError(f"the demo ended with {done.returncode} before it had trained")
    return told
