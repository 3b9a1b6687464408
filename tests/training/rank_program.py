"""The program of each rank in a test: it runs one job after another, each with its own plan. A job trains a few steps,
and saves a checkpoint before and after."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from accelerate.state import AcceleratorState

from agentrl.images import decoding
from agentrl.images.processing import Processing
from agentrl.policies.loss_settings import CriticRule, PolicyLoss
from agentrl.tokens import image_ids
from agentrl.training import checkpoints
from agentrl.training.batch import Batch
from agentrl.training.checkpoints import Progress
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.mesh import Sizes
from agentrl.training.optimizers import AdamW
from agentrl.training.scorers import Scorer
from agentrl.training.spread_tensors import own
from tests.images import tiny_vision
from tests.training.trees import batch_of, fork, group

GROUPS = (3, 2, 4, 1, 2)
"""Members of the groups of a batch: a number that no two or four ranks share evenly."""
OBJECTIVES = (
    PolicyLoss(),
    PolicyLoss(ratio="decoupled", weight_cap=2.0, weight_normalised=True, reference_weight=0.1, reference_in="reward"),
    PolicyLoss(kind="gspo", clip_low=0.1, clip_high=0.2, aggregation="record-mean"),
)

OF_CRITIC = PolicyLoss(kind="ppo", critic=CriticRule())


def run_jobs(jobs: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> None:
    """`environment` names the ranks as torch's launcher does."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    for job in jobs:
        run_job(job)


def run_job(job: Mapping[str, Any]) -> None:
    # The process would keep the precision of the job before.
    AcceleratorState._reset_state()
    # With a small eps, Adam would amplify differences between gradients that are only rounding.
    settings = LearnerSettings(
        parallel=Sizes(**job["parallel"]),
        adamw=AdamW(eps=1e-6),
        learning_rate=1e-3,
        tokens_per_batch=256,
        weight_decay=0.01,
        **job["settings"],
    )
    learner = Learner(Path(job["start"]), settings)
    if job["first"]:
        assert checkpoints.restore_optimizers(Path(job["start"]), learner)
    learner.compare_with(Path(job["reference"]))
    if job["overflows"] and not learner.leads:
        overflow_once(learner)
    checkpoints.write_checkpoint(Path(job["out"]) / "before", learner, Progress(step=0, version=0))
    results = [train(learner, number) for number in range(job["first"], job["first"] + job["steps"])]
    scores = learner.log_probs([[5, 6, 7, 8], [9, 10, 11]])
    checkpoints.write_checkpoint(Path(job["out"]) / "after", learner, Progress(step=1, version=0))
    if learner.leads:
        listens = [each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
        found = {"metrics": results, "scores": scores, "listens": listens}
        (Path(job["out"]) / "results.json").write_text(json.dumps(found))


def train(learner: Learner, number: int) -> dict[str, float]:
    chance = random.Random(number)
    members = [
        group(chance, size, name=f"g{index}", make=fork) for index, size in enumerate(GROUPS if number % 5 else (3,))
    ]
    batch = batch_of([one for of_group in members for one in of_group])
    if (how := learner.images.how) is not None:
        # Of one group, so that other ranks have none.
        batch = with_images(batch, how, "g0")
    objective = OBJECTIVES[number % len(OBJECTIVES)] if learner.critic is None else OF_CRITIC
    done = learner.train(batch, objective, optimizer_steps=2)
    assert done.applied
    return done.metrics


def with_images(batch: Batch, how: Processing, group: str) -> Batch:
    """Give each member of this group an image at its beginning; two of these images are the same."""
    images = {1: (220, 30, 30), 2: (30, 30, 220)}
    shown = {number: decoding.shown(tiny_vision.square(colour), how) for number, colour in images.items()}
    members = [one for one in batch.trajectories if one.group_key == group]
    changed = {}
    for place, one in enumerate(members):
        number = 1 + place % 2
        tokens = [image_ids.id_of(number)] * shown[number].tokens
        first, *rest = one.segments
        changed[one.record] = msgspec.structs.replace(
            one, segments=[msgspec.structs.replace(first, ids=[*tokens, *map(int, first.ids)]), *rest]
        )
    found = [changed.get(one.record, one) for one in batch.trajectories]
    return msgspec.structs.replace(batch, trajectories=found, images={n: one.png for n, one in shown.items()})


def overflow_once(learner: Learner) -> None:
    """The first gradient of this rank, and of no other, is not finite."""
    parallelism = learner._parallelism
    clip = parallelism.clip

    def clipped(scorer: Scorer[Any], longest: float, *, scale: float) -> float:
        parallelism.clip = clip  # type: ignore[method-assign]
        own(next(one.grad for one in scorer.parameters() if one.grad is not None)).fill_(float("inf"))
        return clip(scorer, longest, scale=scale)

    parallelism.clip = clipped  # type: ignore[method-assign]
