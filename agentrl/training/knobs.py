"""What a person may change about training while it goes on, and what the next Step goes by.

Invariants: a Step goes by one set of values from its first look at the batch to its commit; a new value comes into
force between Steps. A preview says what would be lost before it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.policies.freshness import Decay, Freshness, Strategy, voided
from agentrl.training.losses import PolicyLoss
from agentrl.unit import Unit
from agentrl.unit.knobs import Knob, Preview

DECAY_PER_PUBLICATION = 0.5
STRATEGIES: tuple[Strategy, ...] = ("drop", "wait", "decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one Step goes by."""

    freshness: Freshness
    groups: int
    loss: PolicyLoss
    learning_rate: float
    publish_every: int
    checkpoint_every: int
    evaluate_every: int

    def told(self, hold: str) -> dict[str, object]:
        """What admission must know."""
        numbers = {"bound": self.freshness.oldest, "groups": self.groups, "publish_every": self.publish_every}
        return {**numbers, "hold": hold}


class Knobs:
    """`ages` gives the ages of the records that are ready now."""

    def __init__(self, unit: Unit, config: RunConfig, ages: Callable[[], Sequence[int]]) -> None:
        training = config.training
        self._ages = ages
        self._bound = unit.knob(
            "bound",
            training.bound,
            boundary="next version",
            help="Publications by which the oldest trained token of a record may be behind.",
            minimum=0,
            preview=self._preview_bound,
        )
        self._strategy = unit.knob(
            "strategy",
            str(training.strategy),
            boundary="next version",
            help="What happens at the bound.",
            choices=STRATEGIES,
        )
        self._groups = _counted(unit, "groups", training.groups, "Groups of one step.", scientific=True)
        self._rate = _real(unit, "learning_rate", float(training.learning_rate), "Learning rate.", most=10.0)
        self._low = _real(unit, "clip_low", float(training.clip_low), "How far the ratio may fall.", most=1.0)
        self._high = _real(unit, "clip_high", float(training.clip_high), "How far the ratio may rise.", most=1.0)
        self._publish = _counted(unit, "publish_every", training.publish_every, "Steps of one publication.")
        self._checkpoint = _counted(
            unit, "checkpoint_every", training.checkpoint_every, "Steps between two checkpoints."
        )
        self._evaluate = _counted(
            unit, "evaluate_every", config.evaluation.every, "Publications between two evaluations; 0: none.", least=0
        )

    def take(self) -> Plan:
        """Pass the boundary."""
        strategy: Strategy = next(one for one in STRATEGIES if one == self._strategy.take())
        decay = Decay(out_of_date_decay=DECAY_PER_PUBLICATION) if strategy == "decay" else None
        return Plan(
            freshness=Freshness(strategy, self._bound.take()),
            groups=self._groups.take(),
            loss=PolicyLoss(clip_low=self._low.take(), clip_high=self._high.take(), decay=decay),
            learning_rate=self._rate.take(),
            publish_every=self._publish.take(),
            checkpoint_every=self._checkpoint.take(),
            evaluate_every=self._evaluate.take(),
        )

    def _preview_bound(self, bound: int) -> Preview:
        """A record that is dropped is lost; raising the bound again does not bring it back."""
        lost = voided(self._ages(), Freshness(bound=self._bound.value), Freshness(bound=bound))
        change = f"the bound goes from {self._bound.value} to {bound} with the next step"
        if not lost:
            return Preview(f"{change}; no ready record is too old for it")
        return Preview(f"{change} and voids {lost} ready records", exact_undo=False, loses=lost)


def _counted(unit: Unit, name: str, default: int, help: str, *, least: int = 1, scientific: bool = False) -> Knob[int]:
    return unit.knob(name, default, boundary="next version", help=help, minimum=least, scientific=scientific)


def _real(unit: Unit, name: str, default: float, help: str, *, most: float) -> Knob[float]:
    return unit.knob(name, default, boundary="next version", help=help, minimum=0.0, maximum=most, scientific=True)
