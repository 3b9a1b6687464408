"""The knobs of training, and the plan of settings that the next step uses.

Invariants:
- a step uses one plan from its look for a batch to its commit; new values take effect between steps;
- a preview refuses a value that contradicts the others; if such a value arrives anyway, the plan before it stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from agentrl.config import policy_rules
from agentrl.config.knobs import unit_knobs
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.policies.admission_capacity import Plan as Ahead
from agentrl.policies.admission_capacity import batch_records, refuse_impossible
from agentrl.policies.freshness import STRATEGIES, Decay, Freshness, Strategy
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.protocol.specs import Role
from agentrl.unit import LiveKnob, Unit

log = logging.getLogger("trainer")

_AT_THE_BOUND: dict[Strategy, str] = {
    "drop": "dropped",
    "wait": "waited for",
    "decay": "trained with tighter bounds of the ratio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of one step."""

    freshness: Freshness
    groups: int
    loss: PolicyLoss
    learning_rate: float
    optimizer_steps: int
    publish_every: int
    checkpoint_every: int
    evaluate_every: int
    intervened_share: float = 1.0
    """The greatest share of forks among the records that train."""
    normalise: bool = False
    """Whether advantages are normalized within each environment."""
    balance: bool = False
    """Whether positive and negative advantages of a batch get the same sum."""
    decays_by_time: bool = False

    def for_admission(self, hold: str, *, trial: bool = False) -> dict[str, object]:
        """What admission needs: the settings, why it holds, and whether a few records are tried meanwhile."""
        bounds = {name: own.oldest for name, own in self.freshness.of_environments.items()}
        numbers = {"bound": self.freshness.oldest, "groups": self.groups, "publish_every": self.publish_every}
        return {**numbers, "bounds": bounds, "hold": hold, "trial": trial}


class Kept(NamedTuple):
    """How much is kept on the disk besides what is in use."""

    versions: int
    checkpoints: int


class FreshnessKnobs:
    """How old a record may be, and what happens at the bound."""

    def __init__(self, unit: Unit, config: RunConfig) -> None:
        self._config = config
        knobs = unit_knobs(config, Role.TRAINER)
        self._bound: LiveKnob[int] = unit.declare(knobs["bound"], preview=self._preview_bound)
        self._hard: LiveKnob[int] = unit.declare(knobs["hard_bound"], preview=self._preview_hard_bound)
        self._strategy: LiveKnob[str] = unit.declare(knobs["strategy"], preview=self._preview_strategy)
        self._wait: LiveKnob[float] = unit.declare(knobs["wait_limit_s"])

    def take(self) -> Freshness:
        self._strategy.take(), self._bound.take(), self._hard.take(), self._wait.take()
        return self._rules(self._bound.value, self._hard.value)

    @property
    def oldest(self) -> int:
        """The greatest age that trains, once the pending values are in force."""
        return self._rules(self._bound.pending, self._hard.pending).oldest

    def _rules(self, bound: int, hard: int, named: str = "") -> Freshness:
        """Raises ConfigError if they contradict each other."""
        wanted = named or self._strategy.pending
        strategy: Strategy = next(one for one in STRATEGIES if one == wanted)
        usual = policy_rules.freshness_rule(strategy, bound, hard, wait_limit_s=self._wait.pending)
        environments = self._config.environments
        own = {
            name: policy_rules.freshness_of(environments[name], usual, hard)
            for name in policy_rules.freshness(self._config).of_environments
        }
        return replace(usual, of_environments=own)

    def _preview_bound(self, bound: int) -> str:
        """Only checks the value; the steward counts the records that the bound excludes."""
        self._rules(bound, self._hard.pending)
        return ""

    def _preview_hard_bound(self, hard: int) -> str:
        self._rules(self._bound.pending, hard)
        return ""

    def _preview_strategy(self, strategy: str) -> str:
        after = self._rules(self._bound.pending, self._hard.pending, strategy)
        if after.decays:
            # Not every loss has the ratios that the bounds of decay apply to.
            training = self._config.training
            bounds = policy_rules.decay(training.decay)
            policy_rules.policy_loss(training, longest=self._config.sampling.context, with_decay=bounds)
        return f"records at the bound of {after.oldest} are {_AT_THE_BOUND[after.strategy]} from the next step on"


class DecayKnobs:
    """The knobs of the ratio's bounds under `decay`; together they must stay above 0."""

    def __init__(self, unit: Unit, config: RunConfig) -> None:
        self._strict = config.training.decay.strict
        knobs = unit_knobs(config, Role.TRAINER)
        self._knobs: dict[str, LiveKnob[float]] = {
            name: unit.declare(knobs[f"decay_{name}"], preview=partial(self._preview, name))
            for name in ("out_of_date_decay", "epsilon", "extra", "cap")
        }

    def take(self) -> Decay:
        return self._decay({name: knob.take() for name, knob in self._knobs.items()})

    def _decay(self, values: dict[str, float]) -> Decay:
        """Raises ConfigError if the bounds would reach 0."""
        return Decay(strict=self._strict, **values)

    def _preview(self, name: str, value: float) -> str:
        pending = {each: knob.pending for each, knob in self._knobs.items()}
        lower, upper = self._decay(pending | {name: value}).bounds(0, 0)
        return f"ratios of the newest version may lie between {lower:.3g} and {upper:.3g} from the next step on"


class Knobs:
    def __init__(self, unit: Unit, config: RunConfig) -> None:
        self._unit = unit
        self._config = config
        self._declared = unit_knobs(config, Role.TRAINER)
        self._freshness = FreshnessKnobs(unit, config)
        self._decay = DecayKnobs(unit, config)
        self._groups = self._count("groups", self._preview_groups)
        self._rate, self._low, self._high = map(self._number, ("learning_rate", "clip_low", "clip_high"))
        self._intervened = self._number("intervened_share")
        self._optimizer_steps = self._count("optimizer_steps", self._preview_optimizer_steps)
        self._publish = self._count("publish_every", self._preview_publish_every)
        self._checkpoint, self._evaluate = self._count("checkpoint_every"), self._count("evaluate_every")
        self._versions, self._checkpoints = self._count("keep_versions"), self._count("keep_checkpoints")
        self._normalise, self._balance = map(self._flag, ("normalise", "balance"))
        self._taken: Plan | None = None

    def _count(self, name: str, preview: Callable[[int], str] | None = None) -> LiveKnob[int]:
        knob: LiveKnob[int] = self._unit.declare(
            self._declared[name], preview=preview or (lambda value: _from_the_next_step(knob, value))
        )
        return knob

    def _number(self, name: str) -> LiveKnob[float]:
        knob: LiveKnob[float] = self._unit.declare(
            self._declared[name], preview=lambda value: _from_the_next_step(knob, value)
        )
        return knob

    def _flag(self, name: str) -> LiveKnob[bool]:
        """Declares a flag; the steward counts what it would have changed."""

        def preview(value: bool) -> str:
            policy_rules.refuse_with_a_critic(self._config.training, {name: value})
            return ""

        return self._unit.declare(self._declared[name], preview=preview)

    @property
    def kept(self) -> Kept:
        return Kept(self._versions.take(), self._checkpoints.take())

    def take(self) -> Plan:
        """Takes the pending values at the boundary."""
        try:
            self._taken = self._next()
        except ConfigError as refused:
            if self._taken is None:
                raise
            log.error("the plan stays as it was: %s", refused.message)
        return self._taken

    def _preview_groups(self, groups: int) -> str:
        return self._ahead(groups, self._publish.pending)

    def _preview_publish_every(self, steps: int) -> str:
        return self._ahead(self._groups.pending, steps)

    def _preview_optimizer_steps(self, count: int) -> str:
        groups = self._groups.pending
        _refuse_parts(groups, count)
        return (
            f"from the next step on the {groups} groups of a step are cut into {count} parts, each trained by an "
            f"optimizer step of its own (now {self._optimizer_steps.value}); a step is still committed as a whole"
        )

    def _ahead(self, groups: int, publish_every: int) -> str:
        """The effect on admission and on the batch, by the formula of admission. Raises ConfigError if it is
        impossible."""
        _refuse_parts(groups, self._optimizer_steps.pending)
        n, most = self._config.sampling.n, self._config.rollout.max_in_flight
        bound = self._freshness.oldest
        now, then = (
            Ahead(bound=bound, batch=batch_records(of, [n]), max_concurrent=most, publish_every=every)
            for of, every in ((self._groups.value, self._publish.value), (groups, publish_every))
        )
        refuse_impossible(then, [n])
        return (
            f"from the next step on a step has {groups} groups of {n} ({then.batch} records, now {now.batch}) "
            f"and a publication {publish_every} steps; "
            f"up to {then.ahead} records may be sampled ahead of training (now {now.ahead})"
        )

    def _next(self) -> Plan:
        freshness, decay = self._freshness.take(), self._decay.take()
        decays = freshness.decays
        _refuse_parts(self._groups.pending, self._optimizer_steps.pending)
        training = self._config.training
        loss = policy_rules.policy_loss(
            training, longest=self._config.sampling.context, with_decay=decay if decays else None
        )
        return Plan(
            freshness=freshness,
            groups=self._groups.take(),
            loss=replace(loss, clip_low=self._low.take(), clip_high=self._high.take()),
            learning_rate=self._rate.take(),
            optimizer_steps=self._optimizer_steps.take(),
            publish_every=self._publish.take(),
            checkpoint_every=self._checkpoint.take(),
            evaluate_every=self._evaluate.take(),
            intervened_share=self._intervened.take(),
            normalise=self._normalise.take(),
            balance=self._balance.take(),
            decays_by_time=decays and training.decay.per == "second",
        )


def _refuse_parts(groups: int, count: int) -> None:
    if count > groups:
        raise ConfigError(f"A step of {groups} groups cannot be cut into {count} parts of whole groups.")


def _from_the_next_step(knob: LiveKnob[int] | LiveKnob[float], value: float) -> str:
    change = f"{knob.name} goes from {knob.value:g} to {value:g} with the next step"
    return f"{change}; what is trained already stays, and so does a step that has begun"
