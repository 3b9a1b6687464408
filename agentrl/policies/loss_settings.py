"""The settings of the policy loss: its form, clips, weights, masks, and how pairs are averaged.

Invariants: a difference between two policies is never counted twice; a setting that the chosen form does not use is
refused, so every setting in a run file has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from agentrl.errors import ConfigError
from agentrl.policies.freshness import Decay

LossKind = Literal["grpo", "gspo", "cispo", "minirl", "ce-grpo", "ppo"]
Aggregation = Literal["token-mean", "record-mean", "record-sum", "dr-grpo"]
"""The weight of a pair: 1 over all pairs; 1 over records and the record's pairs; 1 over records; 1 over records times
the longest possible record."""
RatioAgainst = Literal["bypass", "decoupled"]
"""`bypass`: π_θ/μ. `decoupled`: π_θ/π_old, where π_old is the policy that the step begins with."""
Counted = Literal["all", "kept"]
"""The pairs that the denominator counts: all that may train, or those that no bound on a ratio masks."""
WeightBy = Literal["token", "sequence"]
"""ρ of the token, or the product of ρ over the trained tokens of its record."""
ReferenceIn = Literal["loss", "loss-k3", "reward"]
"""`loss`: half the square of log π_θ - log π_ref (k2). `loss-k3`: the k3 estimate. `reward`: the sum of log π_old -
log π_ref over a record is taken from its score (k1)."""

Interval = tuple[float, float]

DEFAULTS_BY_NAME: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "record-mean"},
    "cispo": {"ratio_cap": 5.0},
    "minirl": {
        "clip_high": 0.27,
        "ratio": "decoupled",
        "ratio_cap": 5.0,
        "aggregation": "record-sum",
        "divide_by_std": False,
    },
    "ce-grpo": {},
    "ppo": {"advantage": "gae", "clip_high": 0.2},
}
"""Settings of each form that differ from those of grpo, as long as the run file does not say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """Intervals and limits of ρ = π_old/μ. A pair outside of one adds nothing to the loss."""

    token: Interval | None = None
    """ρ of the token (IcePop)."""
    sequence: Interval | None = None
    """The product of ρ over the record (sequence MIS)."""
    geometric: Interval | None = None
    """The geometric mean of ρ over the record."""
    k2: float | None = None
    """The highest mean of half the square of log ρ over the record."""
    k3: float | None = None
    """The highest mean of ρ - 1 - log ρ over the record."""

    def __post_init__(self) -> None:
        for name in ("token", "sequence", "geometric"):
            interval: Interval | None = getattr(self, name)
            if interval is not None and not 0 <= interval[0] < 1 < interval[1]:
                raise ConfigError(
                    f"The interval {name} of masks must contain 1, the weight of a token of the same policy; "
                    f"it is {interval[0]:g} to {interval[1]:g}."
                )
        for name in ("k2", "k3"):
            limit: float | None = getattr(self, name)
            if limit is not None and limit <= 0:
                raise ConfigError(f"The limit {name} of masks must be above 0, not {limit:g}.")

    @property
    def active(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticRule:
    """How the values of a critic become advantages and a loss."""

    discount: float = 1.0
    """What a reward one token later is worth."""
    trace: float = 0.95
    """How far an advantage looks beyond the next value: 0 not at all, 1 to the end of the record."""
    clip: float = 0.2
    """How far a value may move within a step before its gradient is cut; 0: any distance."""
    normalise: bool = True
    """Advantages get mean 0 and deviation 1 over an optimizer step."""
    alone: int = 0
    """Steps at the beginning in which only the critic learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    kind: LossKind = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    """grpo: caps the ratio for negative advantages."""
    ratio: RatioAgainst = "bypass"
    ratio_cap: float | None = None
    """cispo and minirl: the highest ratio that weighs a log-prob."""
    kept_below: float = 0.0
    """ce-grpo: the share of the gradient that stays below the clip."""
    kept_above: float = 0.0
    """ce-grpo: the share of the gradient that stays above the clip."""
    weight_cap: float | None = None
    """Only decoupled: every pair is weighted by min(ρ, cap), ρ = π_old/μ."""
    weight_by: WeightBy = "token"
    weight_normalised: bool = False
    """Weights are divided by their mean over the pairs of the optimizer step."""
    masks: Masks = Masks()
    reference_weight: float = 0.0
    """Weight of the distance to the reference; its gradient is that of the KL to the reference."""
    reference_in: ReferenceIn = "loss"
    decay: Decay | None = None
    """Replaces the clip: masks pairs whose π_θ/μ is outside of bounds that tighten with the age of their version."""
    aggregation: Aggregation = "token-mean"
    longest: int = 0
    """Only `dr-grpo`: the tokens of the longest possible record."""
    denominator: Counted = "all"
    critic: CriticRule | None = None
    """If set, each token has its own advantage, from the values of a critic (GAE)."""

    def __post_init__(self) -> None:
        for contradiction in (*self._in_the_form(), *self._in_weights(), *self._in_the_mean()):
            raise contradiction

    @property
    def needs_proximal(self) -> bool:
        """Whether π_old has to be computed."""
        return self.ratio == "decoupled" or self.masks.active or self.distance_in_reward

    @property
    def distance_in_reward(self) -> bool:
        return self.reference_weight > 0 and self.reference_in == "reward"

    @property
    def corrects(self) -> bool:
        """Whether ρ weighs or masks pairs."""
        return self.weight_cap is not None or self.masks.active

    def _in_the_form(self) -> Iterator[ConfigError]:
        kind = self.kind
        if self.dual_clip is not None and kind not in ("grpo", "ppo"):
            yield ConfigError(f"dual_clip belongs to the losses grpo and ppo; {kind} does not use it.")
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            yield ConfigError(f"dual_clip must be above 1 + clip_high, not {self.dual_clip:g}.")
        if (self.kept_below or self.kept_above) and kind != "ce-grpo":
            yield ConfigError(f"kept_below and kept_above belong to the loss ce-grpo; {kind} does not use them.")
        if self.ratio_cap is not None and kind not in ("cispo", "minirl"):
            yield ConfigError(f"ratio_cap belongs to the losses cispo and minirl; {kind} does not use it.")
        if kind in ("cispo", "minirl") and (self.ratio_cap is None or self.ratio_cap < 1):
            yield ConfigError(f"The loss {kind} needs a ratio_cap of at least 1.", hint="5 is usual.")
        if kind == "ppo" and self.critic is None:
            yield ConfigError(
                "ppo needs the advantages of a critic.", hint="Set advantage: gae, or take the loss grpo without one."
            )
        if kind == "gspo" and self.critic is not None:
            yield ConfigError("A critic gives every token its own advantage, and gspo has one ratio for a record.")
        if kind == "gspo" and self.aggregation != "record-mean":
            yield ConfigError("The ratio of gspo belongs to a whole record: its aggregation must be record-mean.")
        if kind == "gspo" and self.decay is not None:
            yield ConfigError(
                "The bounds of decay are for ratios of single tokens, and gspo has one ratio for a record.",
                hint="Take the strategy drop or wait.",
            )
        if kind == "minirl" and self.ratio != "decoupled":
            yield ConfigError(
                "minirl clips by the policy that the step begins with: its ratio must be decoupled.",
            )

    def _in_weights(self) -> Iterator[ConfigError]:
        if self.ratio == "bypass" and self.weight_cap is not None:
            yield ConfigError(
                "A weight π_old/μ together with the ratio π_θ/μ would count the same difference twice.",
                hint="Take the decoupled ratio, or no weight.",
            )
        if self.kind == "minirl" and self.weight_cap is not None:
            yield ConfigError(
                "minirl weighs each token by π_θ/μ, so a weight π_old/μ would count the same difference twice.",
                hint="Leave weight_cap out; ratio_cap bounds the weight of minirl.",
            )
        if self.weight_cap is None and (self.weight_by != "token" or self.weight_normalised):
            yield ConfigError("weight_by and weight_normalised say how weights are made, and weight_cap makes none.")
        if self.reference_in != "loss" and not self.reference_weight:
            yield ConfigError("reference_in says where the distance counts, and its reference_weight is 0.")

    def _in_the_mean(self) -> Iterator[ConfigError]:
        if self.aggregation == "dr-grpo" and self.longest < 1:
            yield ConfigError("dr-grpo divides by the longest record that there may be: it must be at least 1 token.")
        if self.denominator == "kept" and self.aggregation != "token-mean":
            yield ConfigError("Only a mean over tokens can count the kept ones.", hint="Take token-mean, or all.")
