"""Which records may train, by the age of their oldest trained token.

Invariants: under `drop` and `wait` nothing past the bound trains; under `decay` nothing past the hard bound trains; the
bounds of a decayed ratio are computed from given ages or times, never from a clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from agentrl.errors import ConfigError

Strategy = Literal["drop", "wait", "decay"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True)
class Freshness:
    strategy: Strategy = "drop"
    bound: int = 2
    """The highest age of a record's oldest trained token, in publications."""
    hard_bound: int | None = None
    """Under `decay`: replaces the bound; at least as high."""
    wait_limit_s: float = 300.0
    """Under `wait`: how long a step is held back for records that it would make too old."""
    of_environments: Mapping[str, Freshness] = field(default_factory=dict)
    """Environments with rules of their own."""

    def __post_init__(self) -> None:
        if self.bound < 0:
            raise ConfigError(f"The staleness bound must be at least 0, not {self.bound}.")
        if self.hard_bound is not None and self.hard_bound < self.bound:
            raise ConfigError(f"The hard bound {self.hard_bound} is smaller than the bound {self.bound}.")

    def of(self, environment: str) -> Freshness:
        return self.of_environments.get(environment, self)

    @property
    def waits(self) -> bool:
        """Whether any environment waits at the bound."""
        return any(rule.strategy == "wait" for rule in (self, *self.of_environments.values()))

    @property
    def decays(self) -> bool:
        """Whether bounds of ratios tighten with age in any environment."""
        return any(rule.strategy == "decay" for rule in (self, *self.of_environments.values()))

    @property
    def oldest(self) -> int:
        """The highest age that trains."""
        if self.strategy == "decay" and self.hard_bound is not None:
            return self.hard_bound
        return self.bound

    def allows(self, age: int) -> bool:
        return age <= self.oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """Bounds of π/μ that tighten around 1 as a record gets older."""

    out_of_date_decay: float
    """How fast, per publication or per second: the unit of `created` and `now`."""
    epsilon: float = 0.2
    extra: float = 0.1
    cap: float = 4.0
    """How many times wider the bounds are for a record of age 0."""
    strict: bool = False
    """Uses the bounds of a very old record for all."""

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise ConfigError(f"The cap of the decayed bounds must be at least 1, not {self.cap:g}.")
        if self.epsilon * self.cap >= 1:
            raise ConfigError(
                f"The lower bound would reach 0: epsilon {self.epsilon:g} times cap {self.cap:g} must be below 1."
            )
        if self.out_of_date_decay < 0 or self.epsilon < 0 or self.extra < 0:
            raise ConfigError("out_of_date_decay, epsilon and extra must not be negative.")

    def bounds(self, created: float, now: float) -> tuple[float, float]:
        """Lower and upper bound of the ratio for tokens created then."""
        floor = 1.0 / self.cap
        faded = floor if self.strict else max(math.exp(min((created - now) * self.out_of_date_decay, 0.0)), floor)
        # The floor times the cap is 1 except for rounding.
        width = max(self.cap * faded, 1.0)
        return 1.0 - self.epsilon * width, 1.0 + (self.epsilon + self.extra) * width
