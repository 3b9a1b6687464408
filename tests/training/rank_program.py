"""What each rank of a test does: one job after another, each with its own plan. A job trains a few steps, and saves a
checkpoint before and after."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.state import AcceleratorState

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training import checkpoints
from agentrl.training.checkpoints import Progress
from agentrl.training.learner import Learner, LearnerSettings
from agentrl.training.mesh import Sizes
from agentrl.training.optimizers import AdamW
from tests.training.trees import batch_of, fork, group

GROUPS = (3, 2, 4, 1, 2)
"""Members of the groups of a batch: a number that no two or four ranks share evenly."""
OBJECTIVES = (
    PolicyLoss(),
    PolicyLoss(ratio="decoupled", weight_cap=2.0, weight_normalised=True, reference_weight=0.1, reference_in="reward"),
    PolicyLoss(kind="gspo", clip_low=0.1, clip_high=0.2, aggregation="record-mean"),
)


def run_jobs(jobs: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> None:
    """`environment` names the ranks as torch's launcher does."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    for job in jobs:
        run_job(job)


def run_job(job: Mapping[str, Any]) -> None:
    # It keeps the precision of the job before.
    AcceleratorState._reset_state()
    # Adam would make large differences of gradients that are nothing but rounding.
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
    done = learner.train(batch, OBJECTIVES[number % len(OBJECTIVES)], optimizer_steps=2)
    assert done.applied
    return done.metrics
