"""Defines the keys of the loss within the section `training`.

Invariant: the rule that is made from the keys (`policies/loss_settings.py`) refuses keys that contradict each other, so
a knob cannot set a combination that the file may not contain.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentrl.config.field_types import SCIENTIFIC_STEP, Flag, Least, Number, Section, Share, named
from agentrl.policies.loss_settings import (
    DEFAULTS_BY_NAME,
    Aggregation,
    Counted,
    RatioAgainst,
    ReferenceIn,
    WeightBy,
)

_Interval = Annotated[tuple[Number, ...], Field(max_length=2)]


class DecaySettings(Section):
    """The bounds of the ratio under the strategy `decay`. They close around 1 as a version grows older."""

    out_of_date_decay: Annotated[Number, Field(ge=0, le=100), named("decay_out_of_date_decay", SCIENTIFIC_STEP)] = 0.5
    """How fast the bounds close, per publication or per second."""
    per: Literal["publication", "second"] = "publication"
    """The unit of age: publications, or the seconds from the announcement of a version to the lease of the step."""
    epsilon: Annotated[Share, named("decay_epsilon", SCIENTIFIC_STEP)] = 0.2
    """How far the ratio of an old version may fall below 1 and rise above it."""
    extra: Annotated[Least, named("decay_extra", SCIENTIFIC_STEP)] = 0.1
    """How much further the ratio may rise."""
    cap: Annotated[Number, Field(ge=1, le=1_000), named("decay_cap", SCIENTIFIC_STEP)] = 4.0
    """How many times wider the bounds of the newest version are; epsilon times cap must be below 1."""
    strict: Flag = False
    """Every version counts as very old."""


class MaskSettings(Section):
    """Intervals and limits of a quotient: the probability under the policy at the start of the step over the one under
    the sampling policy."""

    token: _Interval = ()
    """The interval [LOW, HIGH] of a token's quotient; tokens outside of it do not train. Empty: no mask."""
    sequence: _Interval = ()
    """The same for the product over a record; a record outside of it does not train at all."""
    geometric: _Interval = ()
    """The same for the geometric mean over a record."""
    k2: Least = 0.0
    """The highest mean of half the squared log-quotient of a record; 0: no limit."""
    k3: Least = 0.0
    """The highest k3 estimate of a record; 0: no limit."""


class LossKeys(Section):
    """The loss."""

    loss: Literal["grpo", "gspo", "cispo", "minirl", "ce-grpo", "ppo", "sft"] = "grpo"
    """The form of the policy loss: `grpo`, `gspo`, `cispo`, `minirl`, `ce-grpo` or `ppo`; each has its own defaults.
    `sft`: cross-entropy on demonstrations, as a job of `agentrl train`."""
    clip_low: Annotated[Share, SCIENTIFIC_STEP] = 0.2
    """How far the ratio may fall before its gradient is cut."""
    clip_high: Annotated[Share, SCIENTIFIC_STEP] = 0.28
    """How far the ratio may rise before its gradient is cut."""
    dual_clip: Least = 0.0
    """With `grpo` and `ppo`: the limit of the ratio for negative advantages; 0: no limit."""
    ratio_cap: Least = 0.0
    """With `cispo` and `minirl`: the highest ratio that weights a token; 0: 5 with these, no limit with others."""
    kept_below: Share = 0.0
    """With `ce-grpo`: the share of the gradient that stays below the clip."""
    kept_above: Share = 0.0
    """With `ce-grpo`: the share of the gradient that stays above the clip."""
    ratio: RatioAgainst = "bypass"
    """`bypass`: relative to the policy that sampled. `decoupled`: relative to the policy at the start of the step."""
    weight_cap: Least = 0.0
    """With `decoupled`: the highest weight of a pair (policy at the start over sampling policy); 0: no weights."""
    weight_by: WeightBy = "token"
    """Whether each `token` has its own weight, or the whole `sequence` of a record's trained tokens has one."""
    weight_normalised: Flag = False
    """Weights are divided by their mean over an optimizer step."""
    masks: MaskSettings = MaskSettings()
    """Which tokens do not train, by the same quotient as the weights."""
    reference: Literal["none", "initial"] = "none"
    """`initial`: every step measures the distance of the policy from the initial weights (`kl_reference`)."""
    reference_weight: Least = 0.0
    """With a reference: the weight of the distance; 0: it is only measured."""
    reference_in: ReferenceIn = "loss"
    """Where the distance counts: in the loss by the estimate k2 (`loss`) or k3 (`loss-k3`), or as a part of the score
    by k1 (`reward`)."""
    aggregation: Aggregation = "token-mean"
    """The weight of a token: `token-mean`, `record-mean`, `record-sum`, or `dr-grpo` (a sum over records of
    `sampling.context` tokens each)."""
    denominator: Counted = "all"
    """With `token-mean`: whether tokens that `masks` or the bounds of `decay` exclude count (`all`) or not (`kept`)."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_form(cls, value: Any) -> Any:
        """Each form has its own clips and mean: with those of grpo its clips would never act, or act on everything."""
        if not isinstance(value, dict):
            return value
        form = value.get("loss")
        return {**DEFAULTS_BY_NAME.get(form, {}), **value} if isinstance(form, str) else value
