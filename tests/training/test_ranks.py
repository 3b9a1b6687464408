"""Several ranks learn what one process learns, and leave the same files."""

from __future__ import annotations

import json
import math
import multiprocessing
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE
from agentrl.training.lora import ADAPTER_FILE, Adapters
from tests.training.rank_program import train_as_rank

STEPS = 5
SETTINGS = {"learning_rate": 1e-3, "tokens_per_batch": 128, "weight_decay": 0.01}


class Outcome:
    def __init__(self, place: Path) -> None:
        found = json.loads((place / "results.json").read_text())
        self.metrics: list[dict[str, float]] = found["metrics"]
        self.scores: list[list[float]] = found["scores"]
        self.listens: list[str] = found["listens"]
        self.place = place

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        adapters = self.place / name / ADAPTER_FILE
        weights = adapters if adapters.exists() else self.place / name / WEIGHTS_FILE
        return load_file(weights) | load_file(self.place / name / OPTIMIZER_FILE)


@pytest.fixture(scope="module")
def ranks() -> Any:
    """Where processes of ranks come from: a process that has imported torch once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.rank_program", "peft"])
    return context


def run(
    ranks: Any,
    place: Path,
    start: Path,
    parallel: dict[str, int],
    *,
    resumes: bool = False,
    first: int = 0,
    steps: int = STEPS,
    **settings: Any,
) -> Outcome:
    """Trains with as many processes as the plan has ranks."""
    place.mkdir()
    request = {"out": str(place), "start": str(start), "reference": str(start), "parallel": parallel}
    request |= {"resumes": resumes, "first": first, "steps": steps, "settings": SETTINGS | settings}
    count = math.prod(parallel.values())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    together["GLOO_SOCKET_IFNAME"] = "lo"
    processes = [
        ranks.Process(target=train_as_rank, args=(request, together | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(240)
        assert [process.exitcode for process in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()
    return Outcome(place)


def agree(some: Outcome, one: Outcome) -> None:
    """Up to the order of sums in float32."""
    for step, (mine, expected) in enumerate(zip(some.metrics, one.metrics, strict=True)):
        assert mine.keys() == expected.keys()
        differing = {
            name: (mine[name], value)
            for name, value in expected.items()
            if name != "packed_tokens" and mine[name] != pytest.approx(value, abs=1e-5, rel=1e-4)
        }
        assert not differing, step
    together, expected_tensors = some.tensors("after"), one.tensors("after")
    assert together.keys() == expected_tensors.keys()
    worst = {name: float((together[name] - value).abs().max()) for name, value in expected_tensors.items()}
    assert max(worst.values()) < 1e-5, max(worst.items(), key=lambda item: item[1])
    for left, right in zip(some.scores, one.scores, strict=True):
        assert left == pytest.approx(right, abs=1e-5)


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(right[name], value) for name, value in left.items())


def test_two_ranks_with_shards_train_as_one_process_and_four_go_on_from_their_checkpoint(
    ranks: Any, tiny: Path, tmp_path: Path
) -> None:
    one = run(ranks, tmp_path / "one", tiny, {})
    two = run(ranks, tmp_path / "two", tiny, {"shard": 2}, recompute="full")
    agree(two, one)
    assert set(two.listens) == {"127.0.0.1"}, "where the ranks meet, and not all addresses of the host"
    after = {"start": tmp_path / "two" / "after", "resumes": True, "first": STEPS}
    four = run(ranks, tmp_path / "four", parallel={"replicate": 2, "shard": 2}, **after)
    assert same_bits(two.tensors("after"), four.tensors("before"))
    agree(four, run(ranks, tmp_path / "again", parallel={}, **after))


def test_two_ranks_train_adapters_as_one_process(ranks: Any, tiny: Path, tmp_path: Path) -> None:
    adapters = Adapters(rank=4, alpha=8.0)
    one = run(ranks, tmp_path / "one", tiny, {}, steps=3, adapters=adapters)
    agree(run(ranks, tmp_path / "two", tiny, {"shard": 2}, steps=3, adapters=adapters), one)
