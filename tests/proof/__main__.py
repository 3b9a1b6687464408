"""`python -m tests.proof [--seeds 5] [--steps 30] [--out DIR]`: checks that training does what it claims.

Each seed warms a model up once, and every arm continues from there. The arms of all seeds come first, two at a time
with one thread each, then whole runs and TRL, which use both cores. Writes `results.json`, `proof.md` and plots. A
proof that was stopped continues where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.one_process import OneProcess, connected, shop_run
from tests.benchmarks.report import machine
from tests.proof.arms import ARMS, LOOKS
from tests.proof.figures import Mean, mean, plot

LANES = 2
TRL, QUIET, KILLED = "TRL", "a whole run", "a whole run, kill -9 every 20 s"
SYNCHRONOUS = "synchronous"
EARLY = LOOKS[2]
CURVES = ("grpo", "shuffled", "unmerged", "naive-16", "decoupled-16")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("runs/proof"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    proof = Proof(given.out, given.steps)
    for part in (proof.arms, proof.whole_runs):
        for seed in range(given.seeds):
            part(seed)
            proof.report()
    print((given.out / "proof.md").read_text())


class Proof:
    def __init__(self, out: Path, steps: int) -> None:
        self._out = out
        self._file = out / "results.json"
        self._steps = steps
        self._known: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
        """By arm and seed."""

    def arms(self, seed: int) -> None:
        model = self._model(seed)
        if not (model / "config.json").exists():
            print(f"seed {seed}: warm-up", file=sys.stderr)
            asyncio.run(_warm_up(seed, model))
        steps = ("--steps", str(self._steps))
        with ThreadPoolExecutor(LANES) as lanes:
            list(
                lanes.map(
                    lambda arm: self._once(arm, seed, "tests.proof.arms", arm, str(seed), str(model), *steps), ARMS
                )
            )

    def whole_runs(self, seed: int) -> None:
        model, steps = self._model(seed), ("--steps", str(self._steps))
        self._once(SYNCHRONOUS, seed, "tests.proof.synchronous", str(seed), str(model))
        self._once(QUIET, seed, "tests.proof.whole_run", str(seed), str(model), *steps)
        self._once(KILLED, seed, "tests.proof.whole_run", str(seed), str(model), *steps, "--kills")
        self._trl(seed, model)

    def _model(self, seed: int) -> Path:
        return self._out.absolute() / f"warm-{seed}"

    def _trl(self, seed: int, model: Path) -> None:
        data, trained = self._out.absolute() / f"data-{seed}", self._out.absolute() / f"trl-{seed}"
        rows = data / "runs" / "shop-data" / "train.jsonl"
        if not rows.exists():
            shop_run(_emptied(data), seed)
        options = ("--last", str(self._steps), "--seed", str(seed), "--save", str(trained))
        if not (trained / "config.json").exists():
            _program("tests.benchmarks.trl_peer", str(model), str(rows), *options)
        self._once(TRL, seed, "tests.proof.arms", "grpo", str(seed), str(trained), "--steps", "0")

    def _once(self, arm: str, seed: int, program: str, *words: str) -> None:
        key = f"{arm}/{seed}"
        if key in self._known:
            return
        sys.stderr.write(f"seed {seed}: {arm}\n")  # Written in one call, because two lanes write at the same time.
        self._known[key] = _program(program, *words)
        self._file.write_text(json.dumps(self._known, indent=1))

    # ---- results ----

    def report(self) -> None:
        early = f"after {EARLY} steps"
        rows = [("arm", early, "held-out reward", "seeds", "tokens trained", "seconds"), ("---",) * 6]
        for arm, one in ARMS.items():
            if curves := self._of(arm):
                ends = [curve[-1] for curve in curves]
                then = [at["held_out"] for curve in curves for at in curve if at["step"] == EARLY]
                while_learning = str(mean(then)) if then else ""
                value = str(mean([end["held_out"] for end in ends]))
                rows.append((one.what, while_learning, value, str(len(ends)), *_costs(ends)))
        if starts := [curve[0]["held_out"] for curve in self._of("grpo")]:
            rows.append(("supervised only, where all begin", "", str(mean(starts)), str(len(starts)), "", ""))
        if found := self._of(TRL):
            rows.append(
                (
                    "TRL's GRPOTrainer, as many steps",
                    "",
                    str(mean([one[-1]["held_out"] for one in found])),
                    str(len(found)),
                    "",
                    "",
                )
            )
        for arm in (QUIET, KILLED):
            if results := self._of(arm):
                value, seconds = mean([one["held_out"] for one in results]), mean([one["seconds"] for one in results])
                rows.append((arm, "", str(value), str(len(results)), "", f"{seconds.value:.0f}"))
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        where = ", ".join(f"{name} {value}" for name, value in machine().items())
        (self._out / "proof.md").write_text(f"{where}.\n\n{table}\n\n{self._kills()}\n\n{self._same()}\n")
        for name, along in (("tokens", "trained tokens"), ("seconds", "seconds of training")):
            curves = {ARMS[arm].what: self._curve(arm, name) for arm in CURVES if self._of(arm)}
            if curves:
                (self._out / f"proof-{name}.svg").write_text(plot(curves, along=along, up="held-out reward"))

    def _kills(self) -> str:
        killed = self._of(KILLED)
        count = sum(len(one["killed"]) for one in killed)
        wrong = sum(not one["balanced"] for one in [*killed, *self._of(QUIET)])
        return f"Kills: {count}. Runs whose accounts do not balance: {wrong}."

    def _same(self) -> str:
        found = self._of(SYNCHRONOUS)
        same = sum(one["same"] for one in found)
        return f"Seeds in which training at age 0 has the bits of a synchronous loop: {same} of {len(found)}."

    def _of(self, arm: str) -> list[Any]:
        return [found for key, found in self._known.items() if key.rpartition("/")[0] == arm]

    def _curve(self, arm: str, along: str) -> list[tuple[float, Mean]]:
        """For each step the mean over seeds, and the mean position on the axis."""
        steps = zip(*self._of(arm), strict=True)
        return [(mean([at[along] for at in those]).value, mean([at["held_out"] for at in those])) for those in steps]


def _costs(ends: Sequence[dict[str, Any]]) -> tuple[str, str]:
    tokens, seconds = (mean([end[name] for end in ends]).value for name in ("tokens", "seconds"))
    return f"{tokens:,.0f}", f"{seconds:,.0f}"


def _program(name: str, *words: str) -> Any:
    command = [sys.executable, "-W", "ignore", "-m", name, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[3:])} failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


async def _warm_up(seed: int, model: Path) -> None:
    torch.set_num_threads(2)
    folder = _emptied(model.with_name(f"warming-{seed}"))
    config = shop_run(folder, seed)
    (server,) = config.tools.values()
    async with connected(server) as tools:
        one = OneProcess(config, folder, tools)
        await one.begin()
        one.save(model)
        await one.close()


def _emptied(folder: Path) -> Path:
    """Create the folder, without files that a stopped proof left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    main()
