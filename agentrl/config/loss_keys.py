"""Defines the keys of the loss within the section `training`.

Invariant: keys that contradict each other are refused by the rule that is made of them (`policies/loss_settings.py`),
so that a knob cannot bring about what the file must not say.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.field_types import SCIENTIFIC_STEP, Flag, Least, Number, Section, Share, named
from agentrl.policies.loss_settings import Aggregation, Counted, RatioAgainst


class DecaySettings(Section):
    """The bounds of the ratio under the strategy `decay`. They close around 1 as a version grows older."""

    out_of_date_decay: Annotated[Number, Field(ge=0, le=100), named("decay_out_of_date_decay", SCIENTIFIC_STEP)] = 0.5
    """How fast the bounds close, per publication or per second."""
    per: Literal["publication", "second"] = "publication"
    """The unit of age: publications, or the seconds from the announcement of a version to the lease of the step."""
    epsilon: Annotated[Share, named("decay_epsilon", SCIENTIFIC_STEP)] = 0.2
    """How far the ratio of an old version may fall below 1, and rise above it."""
    extra: Annotated[Least, named("decay_extra", SCIENTIFIC_STEP)] = 0.1
    """How much further the ratio may rise."""
    cap: Annotated[Number, Field(ge=1, le=1_000), named("decay_cap", SCIENTIFIC_STEP)] = 4.0
    """How many times wider the bounds of the newest version are; epsilon times cap must be below 1."""
    strict: Flag = False
    """Every version counts as very old."""


class LossKeys(Section):
    """The loss."""

    loss: Literal["grpo", "sft"] = "grpo"
    """`grpo`: the policy loss. `sft`: cross-entropy on demonstrations, as a job of `agentrl train`."""
    clip_low: Annotated[Share, SCIENTIFIC_STEP] = 0.2
    """How far the ratio may fall before its gradient is cut."""
    clip_high: Annotated[Share, SCIENTIFIC_STEP] = 0.28
    """How far the ratio may rise before its gradient is cut."""
    dual_clip: Least = 0.0
    """The limit of the ratio for negative advantages; 0: no limit."""
    ratio: RatioAgainst = "bypass"
    """`bypass`: relative to the policy that sampled. `decoupled`: relative to the policy at the start of the step."""
    weight_cap: Least = 0.0
    """With `decoupled`: the highest weight of a pair (policy at the start over sampling policy); 0: no weights."""
    reference: Literal["none", "initial"] = "none"
    """`initial`: every step measures the distance of the policy from the initial weights (`kl_reference`)."""
    reference_weight: Least = 0.0
    """With a reference: the weight of the distance in the loss; 0: it is only measured."""
    aggregation: Aggregation = "token-mean"
    """The weight of a token: `token-mean`, `record-mean`, `record-sum`, or `dr-grpo` (a sum over records of
    `sampling.context` tokens each)."""
    denominator: Counted = "all"
    """With `token-mean`: whether tokens that the bounds of `decay` exclude count (`all`) or not (`kept`)."""
