"""Supervised steps before the first publication, through the same packing as everything else.

Invariants: which demonstrations a step sees depends on its number and on one number of the configuration, so the same
warm-up gives the same weights; policy training begins with optimizer state of its own. The learning rate falls towards
the end: what was learned at the full rate alone copies less reliably than it could.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from agentrl.errors import AgentrlError
from agentrl.training.batch import Batch, Trajectory
from agentrl.training.learner import Learner

COOLING_SHARE = 0.4
"""The last part of the steps, in which the learning rate falls evenly."""
COOLEST = 0.05
"""Of the learning rate, at the last step."""


class WarmupFailedError(AgentrlError):
    """The warm-up does not converge."""


def warm_up(
    learner: Learner,
    demonstrations: Sequence[Trajectory],
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    chance: int,
    keep_on: Callable[[int, float], bool] = lambda step, loss: True,
) -> float | None:
    """The loss of the last step; None without any. `keep_on(step, loss)` is asked after each: False ends it early."""
    policy_rate = learner.settings.learning_rate
    learner.new_optimizers(learning_rate)
    loss: float | None = None
    turns = order(len(demonstrations), chance)
    for step in range(1, steps + 1):
        chosen = [demonstrations[next(turns)] for _ in range(min(batch, len(demonstrations)))]
        shown = Batch(step=step, base_version=0, trajectories=chosen)
        done = learner.train(shown, "supervised", learning_rate=learning_rate * cooled(step, steps))
        loss = done.metrics["loss"]
        if not done.applied:
            raise WarmupFailedError(
                f"The loss of step {step} of the warm-up is {loss}.", hint="Lower training.warmup.learning_rate."
            )
        if not keep_on(step, loss):
            break
    learner.new_optimizers(policy_rate)
    return loss


def cooled(step: int, steps: int) -> float:
    """The share of the learning rate that a step has; steps are counted from 1."""
    left = (steps - step) / max(1.0, COOLING_SHARE * steps)
    return min(1.0, COOLEST + (1.0 - COOLEST) * left)


def order(count: int, chance: int, *, skip: int = 0) -> Iterator[int]:
    """All of them, in another order each time round; without the first `skip` ones."""
    generator = random.Random(chance)
    while True:
        places = list(range(count))
        generator.shuffle(places)
        yield from places[skip:]
        skip = max(0, skip - count)
