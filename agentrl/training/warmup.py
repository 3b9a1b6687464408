"""Supervised steps before the first publication, through the same packing as everything else.

The learning rate falls towards the end, because a model that learned only at the full rate copies less reliably.

Invariants: the demonstrations of a step depend on its number and on the seed of the configuration, so the same warm-up
gives the same weights; policy training begins with fresh optimizer state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from agentrl.errors import AgentrlError
from agentrl.training.batch import Batch, Trajectory
from agentrl.training.learner import Learner

COOLING_SHARE = 0.4
"""The last part of the steps, in which the learning rate falls linearly."""
COOLEST = 0.05
"""Share of the learning rate at the last step."""


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
    """Returns the loss of the last step, None without steps. If `keep_on(step, loss)` is False, the warm-up ends."""
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
    """The share of the learning rate at a step; steps count from 1."""
    left = (steps - step) / max(1.0, COOLING_SHARE * steps)
    return min(1.0, COOLEST + (1.0 - COOLEST) * left)


def order(count: int, chance: int, *, skip: int = 0) -> Iterator[int]:
    """Endless indices in a new order in each pass, without the first `skip` ones."""
    generator = random.Random(chance)
    while True:
        places = list(range(count))
        generator.shuffle(places)
        yield from places[skip:]
        skip = max(0, skip - count)
