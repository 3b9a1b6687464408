"""Compares asynchronous training at age 0 with a synchronous loop: `python -m tests.proof.synchronous SEED MODEL`.

With a bound of 0, only records of the newest weights are trained. So a run learns from the same records in the same
order as a loop that samples a batch, waits for all of it and trains. Both have one thread and an engine of one slot,
because rounding depends on the shape of a batch of calls. Prints one JSON document: whether the weights are bitwise
equal after the last step.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from agentrl.engines.embedded.decoder import Keys
from agentrl.store import datasets
from agentrl.training.checkpoints import WEIGHTS_FILE
from tests.benchmarks.one_process import LOOK_EVERY_S, OneProcess, connected
from tests.proof.arms import config_of


class Synchronous(OneProcess):
    """Samples the groups that the next batch lacks, waits for all of them, and continues after the batch was
    trained."""

    async def _keep_sampling(self) -> None:
        n, groups = self._config.sampling.n, self._config.training.groups
        orders = itertools.count()
        rows = datasets.read(Path(self._environment.dataset))
        shuffled = random.Random(0).sample(rows, len(rows))
        while True:
            steps = self.story.steps
            while missing := groups - sum(group.closed.signal for group in self._ready):
                self._in_flight += n * missing
                await asyncio.gather(
                    *(self._group(shuffled[order], order) for order in itertools.islice(orders, missing))
                )
            while self.story.steps == steps:  # it grows once the new weights are served
                await asyncio.sleep(LOOK_EVERY_S)


async def trained(make: type[OneProcess], seed: int, model: Path, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="proof-") as name:
        folder = Path(name)
        config = config_of(folder, seed, model, "training.bound=0", "engines.slots=1")
        (server,) = config.tools.values()
        async with connected(server) as tools:
            one = make(config, folder, tools)
            await one.begin()
            await one.train(steps)
            await one.close()
            one.save(folder / "trained")
        bits = hashlib.sha256((folder / "trained" / WEIGHTS_FILE).read_bytes()).hexdigest()
    return {"records": one.story.trained_records, "tokens": one.story.trained_tokens, "weights": bits}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    # Disable the cache. Its content depends on the order of calls, and a prompt that is computed in parts is rounded
    # differently from a whole one.
    Keys.reusable = lambda model, shared, cached: 0  # type: ignore[method-assign, assignment]
    both = [asyncio.run(trained(make, given.seed, given.model, given.steps)) for make in (OneProcess, Synchronous)]
    print(json.dumps({"same": both[0] == both[1], "asynchronous": both[0], "synchronous": both[1]}))


if __name__ == "__main__":
    main()
