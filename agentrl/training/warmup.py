"""Supervised steps before the first publication, through the same packing as everything else.

The learning rate falls towards the end, because a model that learned only at the full rate copies less reliably.

Invariants:
- The demonstrations of a step depend on its number and on the seed of the configuration, so the same warm-up gives the
  same weights.
- Policy training begins with fresh optimizer state.
- The ids of a demonstration are those of an episode with the same texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.chat.template import Template
from agentrl.errors import AgentrlError
from agentrl.store.demonstrations import Demonstration, Message, Role
from agentrl.tokens.spans import ROOT
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.batch_assembly import IMITATED
from agentrl.training.learner import Learner

SPOKEN: tuple[Role, ...] = ("assistant",)


def trajectory_of(one: Demonstration, template: Template, name: str, roles: Collection[Role] = SPOKEN) -> Trajectory:
    """The tokens of a demonstration. The likelihood of the messages of these roles is trained."""
    segments: list[Segment] = []
    for role, texts, trains in _runs(one.conversation):
        if role == "assistant":
            ids = np.array(template.assistant(texts[0]))
        else:
            ids = np.array(_read(role, texts, one, template, not segments))
            if not segments and role in roles:
                # The first token has no token before it that could predict it.
                segments.append(Segment(parent=ROOT, ids=ids[:1]))
                ids = ids[1:]
        at = len(segments) - 1
        if trains and role in roles:
            versions = [(0, len(ids))]
            segments.append(Segment(parent=at, ids=ids, trains=True, log_probs=np.zeros(len(ids)), versions=versions))
        else:
            segments.append(Segment(parent=at, ids=ids))
    return Trajectory(record=name, group=IMITATED, segments=segments)


def _read(role: Role, texts: Sequence[str], one: Demonstration, template: Template, first: bool) -> list[int]:
    """The ids that the environment adds, including the opening of the assistant's turn."""
    if first:
        return template.first(one.instructions, [tool.spec for tool in one.tools], "\n".join(texts))
    return template.tool_results(texts) if role == "tool" else template.user("\n".join(texts))


def _runs(messages: Sequence[Message]) -> Iterator[tuple[Role, list[str], bool]]:
    """Joins consecutive messages of one role, such as several results of one turn. Also yields whether they train."""
    texts: list[str] = []
    for place, message in enumerate(messages):
        texts.append(message.content)
        if place + 1 == len(messages) or messages[place + 1].role != message.role:
            yield message.role, texts, message.train
            texts = []


def tokenized(
    demonstrations: Sequence[Demonstration],
    model: Path,
    variables: Mapping[str, Any] | None = None,
    roles: Collection[Role] = SPOKEN,
) -> list[Trajectory]:
    """All demonstrations in the tokens of a model. `variables` are those of its chat template."""
    if not demonstrations:
        return []
    template = Template.of(model, variables)
    return [trajectory_of(one, template, f"demonstration {number}", roles) for number, one in enumerate(demonstrations)]


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
