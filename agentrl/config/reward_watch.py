"""Defines the watch over the reward: signs that a policy earns it in an unintended way."""

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
    """An alert fires if the rank correlation of length and score inside groups reaches this value and answers also
    grow."""
    repeats: Share | None = 0.5
    """An alert fires if this share of answers nearly repeat the answer to another task, and score more than the
    others."""
    group_repeats: Share | None = 0.9
    """An alert fires if this share of answers nearly repeat another answer of their own group, and score at most 0.5 on
    average: such groups explore nothing and learn little."""
    votes: Share | None = 0.3
    """An alert fires if a judge contradicts itself on this share of records."""
    watchers: Annotated[Number, Field(gt=0)] | None = 4.0
    """An alert fires if the score rises and a watcher falls by this many standard errors."""
