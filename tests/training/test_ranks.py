"""Several ranks learn the same as one process, however the model is divided, and leave the same files."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from agentrl.config.contradictions import of_parallel
from agentrl.config.parallel import Parallel
from agentrl.engines.adapters import ADAPTER_FILE
from agentrl.training.checkpoints import CRITIC_FILE, OPTIMIZER_FILE, WEIGHTS_FILE
from agentrl.training.lora import Adapters
from agentrl.training.precision import FIRST_SCALE
from agentrl.training.sharding import Keeping
from tests.images import tiny_vision
from tests.training.families import EXPERTS, SIZES
from tests.training.rank_program import run_job, run_jobs

STEPS = 5
VISION_STEPS = 2
ENOUGH_S = 400
TWO: dict[str, tuple[str, dict[str, Any]]] = {
    "shard": ("dense", {"recompute": "full", "keeping": Keeping(on_host=True)}),
    "tensor": ("dense", {}),
    "context": ("dense", {"recompute": "selective"}),
    "pipeline": ("dense", {}),
    "expert": ("experts", {}),
}
"""The model of each kind of parallelism, and settings that should change nothing."""
ADAPTERS = Adapters(rank=4, alpha=8.0)
FOUR = ("tensor", "context", "pipeline", "expert")


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
        critic = self.place / name / CRITIC_FILE
        of_critic = load_file(critic) if critic.exists() else {}
        return load_file(weights) | load_file(self.place / name / OPTIMIZER_FILE) | of_critic


class Jobs:
    """Runs jobs on any number of ranks. The processes for each number are started once."""

    def __init__(self, place: Path, models: dict[str, Path]) -> None:
        self._place, self._models = place, models
        self._context = multiprocessing.get_context("forkserver")
        # A process that has imported torch once for all of them.
        self._context.set_forkserver_preload(["tests.training.rank_program", "peft"])

    def job(
        self,
        name: str,
        model: str,
        parallel: dict[str, int],
        *,
        start: Path | None = None,
        steps: int = STEPS,
        overflows: bool = False,
        **settings: Any,
    ) -> dict[str, Any]:
        """The plan of a job. With `start` it continues from that checkpoint; with `overflows` a gradient of one rank
        overflows."""
        (self._place / name).mkdir()
        reference = self._models[model]
        return {
            "out": str(self._place / name), "start": str(start or reference), "reference": str(reference),
            "parallel": parallel, "first": STEPS if start else 0, "steps": steps, "overflows": overflows,
            "settings": settings,
        }  # fmt: skip

    def alone(self, name: str, model: str, **more: Any) -> Outcome:
        job = self.job(name, model, {}, **more)
        run_job(job)
        return Outcome(Path(job["out"]))

    def of_ranks(self, count: int, jobs: dict[str, dict[str, Any]]) -> dict[str, Outcome]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
        together["GLOO_SOCKET_IFNAME"] = "lo"
        processes = [
            self._context.Process(
                target=run_jobs, args=(list(jobs.values()), together | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            )
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join(ENOUGH_S)
            assert [process.exitcode for process in processes] == [0] * count
        finally:
            for process in processes:
                process.kill()
        return {name: Outcome(Path(job["out"])) for name, job in jobs.items()}


@pytest.fixture(scope="module")
def jobs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    experts = tmp_path_factory.mktemp("experts")
    torch.manual_seed(7)
    # Four of everything: each kind of parallelism may have four ranks.
    four = {"vocab_size": 319, "num_hidden_layers": 4, "num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model("qwen3_moe", **{**SIZES, **EXPERTS, **four})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(experts)
    seen = tiny_vision.write(tmp_path_factory.mktemp("vision") / "model", "qwen3_vl")
    return Jobs(tmp_path_factory.mktemp("jobs"), {"dense": tiny, "experts": experts, "vision": seen})


def agree(some: Outcome, one: Outcome, *, limit: float = 1e-5) -> None:
    """Up to the order of sums in float32."""
    for step, (mine, expected) in enumerate(zip(some.metrics, one.metrics, strict=True)):
        assert mine.keys() == expected.keys()
        differing = {
            name: (mine[name], value)
            for name, value in expected.items()
            if name != "packed_tokens" and mine[name] != pytest.approx(value, abs=limit, rel=10 * limit)
        }
        assert not differing, (some.place.name, step)
    together, expected_tensors = some.tensors("after"), one.tensors("after")
    assert together.keys() == expected_tensors.keys()
    worst = {name: float((together[name] - value).abs().max()) for name, value in expected_tensors.items()}
    assert max(worst.values()) < limit, (some.place.name, max(worst.items(), key=lambda item: item[1]))
    for left, right in zip(some.scores, one.scores, strict=True):
        assert left == pytest.approx(right, abs=limit)


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(right[name], value) for name, value in left.items())


@pytest.fixture(scope="module")
def two(jobs: Jobs) -> dict[str, Outcome]:
    """The results of two ranks."""
    of_two = {kind: jobs.job(f"two {kind}", model, {kind: 2}, **more) for kind, (model, more) in TWO.items()}
    for kind, (model, _) in TWO.items():
        if kind != "shard":
            of_two[f"{kind}, adapters"] = jobs.job(f"two {kind}, adapters", model, {kind: 2}, adapters=ADAPTERS)
    of_two["vision"] = jobs.job("two vision", "vision", {"shard": 2}, steps=VISION_STEPS)
    narrow = {"precision": "bfloat16", "keeping": Keeping(narrow=True)}
    of_two["narrow"] = jobs.job("two narrow", "dense", {"shard": 2}, **narrow)
    of_two["float16"] = jobs.job("two float16", "dense", {"shard": 2}, overflows=True, precision="float16")
    return jobs.of_ranks(2, of_two)


def test_two_ranks_train_as_one_process(jobs: Jobs, two: dict[str, Outcome]) -> None:
    one = {model: jobs.alone(model, model) for model in ("dense", "experts")}
    for kind, (model, _) in TWO.items():
        agree(two[kind], one[model])
        assert set(two[kind].listens) == {"127.0.0.1"}, "the store for the rendezvous listens on one address only"
    agree(two["vision"], jobs.alone("vision", "vision", steps=VISION_STEPS))
    before, after = (two["vision"].tensors(name) for name in ("before", "after"))
    assert any("visual" in name and not torch.equal(one, after[name]) for name, one in before.items())
    for kind in ("narrow", "float16"):
        for some, expected in zip(two[kind].metrics, one["dense"].metrics, strict=True):
            assert some["loss"] == pytest.approx(expected["loss"], abs=0.01), kind
            assert some["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.03), kind
    found = [(some["loss_scale"], some["loss_scale_overflows"]) for some in two["float16"].metrics]
    assert found == [(FIRST_SCALE / 2, 1.0)] * STEPS, "all ranks repeat what one of them cannot use"
    adapted = {model: jobs.alone(f"{model}, adapters", model, adapters=ADAPTERS) for model in ("dense", "experts")}
    for kind, (model, _) in TWO.items():
        if kind != "shard":
            agree(two[f"{kind}, adapters"], adapted[model])


def test_four_ranks_with_shards_go_on_from_checkpoints_of_two_without(jobs: Jobs, two: dict[str, Outcome]) -> None:
    starts = {kind: two[kind].place / "after" for kind in TWO}
    plans = {kind: {"shard": 2, kind: 2} for kind in FOUR} | {"shard": {"replicate": 2, "shard": 2}}
    four = jobs.of_ranks(
        4, {kind: jobs.job(f"four {kind}", TWO[kind][0], plan, start=starts[kind]) for kind, plan in plans.items()}
    )
    # One of them for each model: the others began at the same place, but for rounding.
    again = {
        model: jobs.alone(f"{model} again", model, start=starts[kind])
        for kind, (model, _) in TWO.items()
        if kind in ("shard", "expert")
    }
    for kind, outcome in four.items():
        assert same_bits(two[kind].tensors("after"), outcome.tensors("before")), kind
        agree(outcome, again[TWO[kind][0]])


CRITIC = {"critic_rate": 1e-3}
MUON = {"optimizer": "muon"}
ON_FOUR: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "tensor alone": ({"tensor": 4}, {}),
    "context alone": ({"context": 4}, {}),
    "pipeline alone": ({"pipeline": 4}, {}),
    "expert alone": ({"expert": 4}, {}),
    "shard alone, muon": ({"shard": 4}, MUON),
    "replicate alone": ({"replicate": 4}, {}),
    "tensor and context": ({"tensor": 2, "context": 2}, {}),
    "tensor and pipeline, a critic": ({"tensor": 2, "pipeline": 2}, CRITIC),
    "context and pipeline": ({"context": 2, "pipeline": 2}, {}),
    "context and expert, a critic": ({"context": 2, "expert": 2}, CRITIC),
    "pipeline and expert": ({"pipeline": 2, "expert": 2}, {}),
    "replicate and tensor, muon": ({"replicate": 2, "tensor": 2}, MUON),
    "replicate and context": ({"replicate": 2, "context": 2}, {}),
    "replicate and pipeline": ({"replicate": 2, "pipeline": 2}, {}),
    "replicate and expert, a critic": ({"replicate": 2, "expert": 2}, CRITIC),
}
"""Each kind alone and each pair of kinds, but for those that go on from checkpoints of two ranks."""


@pytest.fixture(scope="module")
def four(jobs: Jobs) -> dict[str, Outcome]:
    """The results of four ranks, which are started once."""
    return jobs.of_ranks(
        4, {name: jobs.job(name, "experts", plan, steps=1, **more) for name, (plan, more) in ON_FOUR.items()}
    )


@pytest.fixture(scope="module")
def alone(jobs: Jobs) -> dict[str, Outcome]:
    """The result of one process with the same settings."""
    settings = {"": {}, "a critic": CRITIC, "muon": MUON}
    return {name: jobs.alone(f"alone {name}", "experts", steps=1, **more) for name, more in settings.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", ON_FOUR)
def test_four_ranks_train_as_one_process(four: dict[str, Outcome], alone: dict[str, Outcome], name: str) -> None:
    _, _, what = name.partition(", ")
    # Muon computes its updates in 16 bits, so it enlarges the order of sums.
    agree(four[name], alone[what], limit=1e-3 if what == "muon" else 1e-5)


def test_plans_of_the_tests_are_all_that_a_run_may_have() -> None:
    tried = {frozenset(plan) for plan, _ in ON_FOUR.values()} | {frozenset({"shard", kind}) for kind in FOUR}
    tried |= {frozenset({"shard", "replicate"})}
    possible = [frozenset(kinds) for count in (1, 2) for kinds in itertools.combinations(Parallel.model_fields, count)]
    allowed = {kinds for kinds in possible if not list(of_parallel(Parallel(**dict.fromkeys(kinds, 2)), groups=8))}
    assert tried == allowed
