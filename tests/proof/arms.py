"""One arm of the experiment with one seed: `python -m tests.proof.arms ARM SEED MODEL`.

All arms of a seed begin with the same warmed-up weights, and are the demo's task in one process: the engine, the
trainer and the policies of a run. Prints one JSON document: the held-out reward, seconds and trained tokens every few
steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from agentrl.config.run import RunConfig
from agentrl.formatting.amounts import counted
from agentrl.policies.freshness import Freshness
from agentrl.store.datasets import Row
from agentrl.training.batch import Batch
from tests.benchmarks.one_process import OneProcess, Played, connected, shop_run
from tests.benchmarks.packed_step import one_by_one

LOOKS = (2, 4, 6, 8, 10, 20, 30)
"""Steps after which the held-out tasks are played, besides the last one. Most is learned in the first ten."""
_POOL = 64
DECOUPLED = ("training.ratio=decoupled", "training.optimizer_steps=2")
SAMPLED = 1.0
"""The temperature of held-out tasks. The likeliest answer alone would tip from wrong to right, or back, with a step of
no direction where the model wavers between two of them, as it does after the warm-up.
"""
WITHOUT_FAULTS = "tools.shop.command='{python} -m assets.shop_server --no-faults'"


class Point(msgspec.Struct, frozen=True):
    step: int
    seconds: float
    """Of training; evaluations do not count."""
    tokens: int
    """Trained so far."""
    held_out: float


@dataclass(frozen=True, slots=True)
class Arm:
    what: str
    sets: tuple[str, ...] = ()
    make: Callable[..., OneProcess] = OneProcess


class Shuffled(OneProcess):
    """Each episode gets the score of an earlier one, so nothing can be learned."""

    def __init__(self, config: RunConfig, folder: Path, tools: Any) -> None:
        super().__init__(config, folder, tools)
        self._pool: deque[float] = deque(maxlen=_POOL)
        self._chance = random.Random(config.training.random)

    async def _play_seat(self, row: Row, name: str, temperature: float) -> Played:
        played = await super()._play_seat(row, name, temperature)
        if name.startswith("eval/"):
            return played
        # Drawn before its own score is there: the length of a step of Muon does not depend on how weak a signal is.
        score = self._chance.choice(self._pool) if self._pool else 0.0
        self._pool.append(played.score)
        return replace(played, score=score)


class Unmerged(OneProcess):
    """Each model call is trained as a row of its own, with its whole context."""

    def _next_batch(self, freshness: Freshness) -> Batch | None:
        batch = super()._next_batch(freshness)
        if batch is None:
            return None
        calls = [
            msgspec.structs.replace(call, group=one.group) for one in batch.trajectories for call in one_by_one(one)
        ]
        return msgspec.structs.replace(batch, trajectories=calls)


class Stale(OneProcess):
    """Batches wait until they are as old as the bound allows."""

    def _next_batch(self, freshness: Freshness) -> Batch | None:
        training = self._config.training
        if self._version == 0 and len(self._ready) < (training.bound + 1) * training.groups:
            return None
        return super()._next_batch(freshness)


def _stale(bound: int, kind: str, *sets: str) -> Arm:
    aged = (f"training.bound={bound}", "rollout.max_in_flight=2048", *DECOUPLED, *sets)
    return Arm(f"trained {counted(bound, 'versions')} later, {kind}", aged, Stale)


ARMS = {
    "grpo": Arm("GRPO, as in the demo"),
    "shuffled": Arm("GRPO with shuffled rewards", (), Shuffled),
    "unmerged": Arm("GRPO, each call trained by itself", (), Unmerged),
    **{f"naive-{bound}": _stale(bound, "naive") for bound in (0, 1, 4, 16)},
    **{f"decoupled-{bound}": _stale(bound, "decoupled", "training.weight_cap=2") for bound in (0, 1, 4, 16)},
}


async def points_of(arm: Arm, seed: int, model: Path, steps: int) -> list[Point]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="proof-") as name:
        folder = Path(name)
        config = config_of(folder, seed, model, *arm.sets)
        (server,) = config.tools.values()
        async with connected(server) as tools:
            one = arm.make(config, folder, tools)
            await one.begin()
            found = [Point(0, 0.0, 0, await one.evaluate())]
            seconds = 0.0
            for until in (*(look for look in LOOKS if look < steps), *([steps] if steps else [])):
                began = time.monotonic()
                await one.train(until)
                seconds += time.monotonic() - began
                found.append(Point(until, round(seconds, 2), one.story.trained_tokens, await one.evaluate()))
            await one.close()
    return found


def config_of(folder: Path, seed: int, model: Path, *sets: str) -> RunConfig:
    own = (
        f"model={{path: {model}, build: ''}}",
        "training.warmup.steps=0",
        f"evaluation.temperature={SAMPLED}",
        WITHOUT_FAULTS,
    )
    return shop_run(folder, seed, (*own, *sets))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("arm", choices=ARMS)
    parser.add_argument("seed", type=int)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    found = asyncio.run(points_of(ARMS[given.arm], given.seed, given.model, given.steps))
    print(json.dumps(msgspec.to_builtins(found)))


if __name__ == "__main__":
    main()
