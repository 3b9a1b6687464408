"""Measures a step of four ranks that share every weight (FSDP2), compared with one process on the same cores.

All ranks are processes of this machine and exchange weights and gradients by gloo over loopback. Both train the same
batch: each rank with one thread, the single process with one thread per core. So both have the same processors, and the
additional time of the ranks is the cost of the exchange and of work that each rank repeats.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.mesh import Sizes
from tests.benchmarks.report import Outcome, median

RANKS = 4
REPEATS = 3
GROUPS, LENGTH, PER_BATCH = 8, 2048, 4096
"""A step has 8 groups of one record, and a rank has one micro-batch of it."""
MOST = 1.3
ENOUGH_S = 1800.0
SHAPE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": LENGTH,
}
"""25 million parameters, in the proportions of Qwen3."""


def measure() -> Outcome:
    cores = len(os.sched_getaffinity(0))
    outcome = Outcome(f"a step of {RANKS} ranks with FSDP2, next to one process on the same {cores} cores")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        model = Path(folder) / "model"
        torch.manual_seed(0)
        transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE)).save_pretrained(model)
        # Both take turns, because the speed of the machine may change from minute to minute.
        with team(model, 1, cores) as one, team(model, RANKS, 1) as several:
            found = [(one(), several()) for _ in range(REPEATS + 1)][1:]
    alone, together = (median([pair[place]["seconds"] for pair in found]) for place in (0, 1))
    losses = [pair[place]["loss"] for pair in found[:1] for place in (0, 1)]
    assert abs(losses[0] - losses[1]) < 1e-4, f"the ranks computed another loss than one process: {losses}"
    outcome.within(f"a step of {GROUPS * LENGTH:,} tokens", together, "s", "one process", alone, MOST)
    outcome.plain("tokens of all ranks together", GROUPS * LENGTH / together, "/s")
    used = [median([pair[place]["processor"] for pair in found]) for place in (0, 1)]
    outcome.share("processor time", used[1], "s", "one process", used[0], 0)
    return outcome


@contextmanager
def team(model: Path, ranks: int, threads: int) -> Iterator[Any]:
    """Processes that wait for steps. Yields a function that trains one step and returns its figures."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    together |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(threads)}
    # Not multiprocessing, whose tracker of resources would outlive the benchmark.
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(model), str(threads)]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | together | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]

    def step() -> dict[str, float]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("step\n")
            process.stdin.flush()
        answers = [_answer(process) for process in processes]
        return {
            "seconds": max(one["seconds"] for one in answers),
            "processor": sum(one["processor"] for one in answers),
            "loss": answers[0]["loss"],
        }

    try:
        yield step
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], ENOUGH_S)
    assert readable, f"a rank has not answered within {ENOUGH_S:g} s"
    line = process.stdout.readline()
    assert line, f"a rank ended with exit code {process.wait()}"
    return dict(json.loads(line))


def main() -> None:
    """One rank: trains a step for each line of standard input."""
    model, threads, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(threads)
    learner = Learner(model, LearnerSettings(parallel=Sizes(shard=ranks), tokens_per_batch=PER_BATCH))
    batch = _batch()
    for _ in sys.stdin:
        if ranks > 1:
            torch.distributed.barrier()
        began, used = time.perf_counter(), time.process_time()
        done = learner.train(batch, PolicyLoss())
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        assert done.applied
        print(json.dumps({"seconds": seconds, "processor": processor, "loss": done.metrics["loss"]}), flush=True)


def _batch() -> Batch:
    chance = np.random.default_rng(1)
    words = SHAPE["vocab_size"]

    def record(number: int) -> Trajectory:
        asked, answer = chance.integers(0, words, 256), chance.integers(0, words, LENGTH - 256)
        trained = Segment(
            parent=0, ids=answer, trains=True, log_probs=np.full(len(answer), -9.0), versions=[(1, len(answer))]
        )
        segments = [Segment(parent=-1, ids=asked), trained]
        return Trajectory(record=str(number), group=str(number), segments=segments, advantage=(-1.0) ** number)

    return Batch(step=1, base_version=1, ages={1: 0}, trajectories=[record(number) for number in range(GROUPS)])


if __name__ == "__main__":
    main()
