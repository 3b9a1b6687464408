"""The settings of the policy loss: ratio, clips, weights, and how pairs are averaged.

Invariant: contradictory settings, such as counting a difference twice, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.policies.freshness import Decay

Aggregation = Literal["token-mean", "record-mean", "record-sum", "dr-grpo"]
"""The weight of a pair: 1 over all pairs; 1 over records and the record's pairs; 1 over records; 1 over records times
the longest possible record."""
RatioAgainst = Literal["bypass", "decoupled"]
"""`bypass`: π_θ/μ. `decoupled`: π_θ/π_old, where π_old is the policy that the step begins with."""
Counted = Literal["all", "kept"]
"""The pairs that the denominator counts: all that may train, or those that no bound on the ratio masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """GRPO."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    """Caps the ratio for negative advantages."""
    ratio: RatioAgainst = "bypass"
    weight_cap: float | None = None
    """Only decoupled: every pair is weighted by min(π_old/μ, cap)."""
    reference_weight: float = 0.0
    """Weight of half the square of log π_θ - log π_ref; its gradient is that of the KL to the reference."""
    decay: Decay | None = None
    """Instead of the clip: masks pairs whose π_θ/μ leaves bounds that tighten with the age of their version."""
    aggregation: Aggregation = "token-mean"
    longest: int = 0
    """Only `dr-grpo`: the tokens of the longest possible record."""
    denominator: Counted = "all"

    def __post_init__(self) -> None:
        if self.ratio == "bypass" and self.weight_cap is not None:
            raise ConfigError(
                "A weight π_old/μ together with the ratio π_θ/μ would count the same difference twice.",
                hint="Take the decoupled ratio, or no weight.",
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ConfigError(f"dual_clip must be above 1 + clip_high, not {self.dual_clip:g}.")
        if self.aggregation == "dr-grpo" and self.longest < 1:
            raise ConfigError("dr-grpo divides by the longest record that there may be: it must be at least 1 token.")
        if self.denominator == "kept" and self.aggregation != "token-mean":
            raise ConfigError("Only a mean over tokens can count the kept ones.", hint="Take token-mean, or all.")
