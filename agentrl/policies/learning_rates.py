"""The learning rate of a step, as a share of the configured one.

Invariant: the share depends on the number of the step alone, so a run that continues from a checkpoint has the rates
that it would have had without the interruption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentrl.errors import ConfigError

ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Rises linearly over the first steps, then falls until the last one."""

    kind: ScheduleKind = "constant"
    rise: int = 0
    """Steps until the full rate; 0 begins with it."""
    last: int = 0
    """The step with the lowest rate; it stays there. Only `constant` needs none."""
    lowest: float = 0.0
    """The share at the last step."""

    def __post_init__(self) -> None:
        if self.kind != "constant" and self.last <= self.rise:
            raise ConfigError(
                f"A {self.kind} schedule needs a last step after the {self.rise} steps in which the rate rises, "
                f"not {self.last}.",
                hint="Set training.steps, or training.schedule.steps.",
            )

    def share(self, step: int) -> float:
        """Steps count from 1."""
        if step < self.rise:
            return step / self.rise
        if self.kind == "constant":
            return 1.0
        done = min(1.0, (step - self.rise) / (self.last - self.rise))
        left = 1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.lowest + (1.0 - self.lowest) * left
