"""Defines the watch over the reward: signs that a policy earns it in a way that is not meant."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.config.field_types import Number, Seconds, Section, Share


class RewardWatch(Section):
    """Signs that the reward is exploited, measured over the newest scored records of each environment. A limit of
    null measures without an alert."""

    records: Annotated[int, Field(strict=True, ge=64, le=1_000)] = 400
    """How many records of an environment are looked at."""
    every_s: Seconds = 60.0
    """How often."""
    length: Share | None = 0.5
    """The rank correlation of length and score inside groups from which on there is an alert, if answers also grow."""
    repeats: Share | None = 0.5
    """The share of answers with nearly the same answer to another task, from which on there is an alert, if they score
    more than the others."""
    group_repeats: Share | None = 0.9
    """The share of answers with nearly the same answer in their own group, from which on there is an alert, if they
    score at most 0.5 on average: such groups explore nothing, and learn little."""
    votes: Share | None = 0.3
    """The share of records on which a judge contradicts itself, from which on there is an alert."""
    watchers: Annotated[Number, Field(gt=0)] | None = 4.0
    """By how many standard errors the score rises and a watcher falls, from which on there is an alert."""
