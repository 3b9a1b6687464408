"""What a person may change about training while it goes on, and what the next Step goes by.

Invariants: a Step goes by one set of values from its first look at the batch to its commit; a new value comes into
force between Steps. A preview refuses what contradicts the other values; if such a value comes nevertheless, the plan
before it stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentrl.config import policy_rules
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.policies.admission import Plan as Ahead
from agentrl.policies.admission import batch_records, refuse_impossible
from agentrl.policies.freshness import STRATEGIES, Decay, Freshness, Strategy
from agentrl.policies.policy_loss import PolicyLoss
from agentrl.unit import Unit
from agentrl.unit.unit_knobs import Knob

log = logging.getLogger("trainer")

_AT_THE_BOUND: dict[Strategy, str] = {
    "drop": "dropped",
    "wait": "waited for",
    "decay": "trained with tighter bounds of the ratio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one Step goes by."""

    freshness: Freshness
    groups: int
    loss: PolicyLoss
    learning_rate: float
    optimizer_steps: int
    publish_every: int
    checkpoint_every: int
    evaluate_every: int
    normalise: bool = False
    """Whether advantages are brought to one scale within each environment."""
    decays_by_time: bool = False

    def for_admission(self, hold: str, *, trial: bool = False) -> dict[str, object]:
        """What admission needs: the settings, why it holds, and whether a few records are tried meanwhile."""
        bounds = {name: own.oldest for name, own in self.freshness.of_environments.items()}
        numbers = {"bound": self.freshness.oldest, "groups": self.groups, "publish_every": self.publish_every}
        return {**numbers, "bounds": bounds, "hold": hold, "trial": trial}


class Kept(NamedTuple):
    """How much stays on the disk besides what somebody needs."""

    versions: int
    checkpoints: int


class FreshnessKnobs:
    """How old a record may be, and what happens then."""

    def __init__(self, unit: Unit, config: RunConfig) -> None:
        training = config.training
        self._config = config
        self._bound = unit.knob(
            "bound",
            training.bound,
            boundary="next version",
            help="Publications by which the oldest trained token of a record may be behind.",
            minimum=0,
            preview=self._preview_bound,
        )
        self._hard = unit.knob(
            "hard_bound",
            training.hard_bound,
            boundary="next version",
            help="Under decay: what takes the place of the bound; 0: the bound itself.",
            minimum=0,
            preview=self._preview_hard_bound,
        )
        self._strategy = unit.knob(
            "strategy",
            str(training.strategy),
            boundary="next version",
            help="What happens at the bound.",
            choices=STRATEGIES,
            scientific=True,
            preview=self._preview_strategy,
        )
        self._wait = unit.knob(
            "wait_limit_s",
            float(training.wait_limit_s),
            boundary="next version",
            help="Under wait: how long a step is held back for records that it would make too old.",
            unit="s",
            minimum=0.0,
        )

    def take(self) -> Freshness:
        self._strategy.take(), self._bound.take(), self._hard.take(), self._wait.take()
        return self._rules(self._bound.value, self._hard.value)

    @property
    def oldest(self) -> int:
        """The greatest age that trains, once what was set is in force."""
        return self._rules(self._bound.pending, self._hard.pending).oldest

    def _rules(self, bound: int, hard: int, named: str = "") -> Freshness:
        """ConfigError if they contradict each other."""
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
        """Whom it leaves outside is counted by the steward."""
        self._rules(bound, self._hard.pending)
        return ""

    def _preview_hard_bound(self, hard: int) -> str:
        self._rules(self._bound.pending, hard)
        return ""

    def _preview_strategy(self, strategy: str) -> str:
        after = self._rules(self._bound.pending, self._hard.pending, strategy)
        return f"records at the bound of {after.oldest} are {_AT_THE_BOUND[after.strategy]} from the next step on"


class DecayKnobs:
    """The bounds of the ratio under `decay`; together they must leave room above 0."""

    def __init__(self, unit: Unit, config: RunConfig) -> None:
        self._settings = config.training.decay
        usual = policy_rules.decay(self._settings)
        self._rate = self._knob(unit, "out_of_date_decay", usual.out_of_date_decay, "How fast the bounds close.")
        self._epsilon = self._knob(unit, "epsilon", usual.epsilon, "How far the ratio of an old version may go.")
        self._extra = self._knob(unit, "extra", usual.extra, "How much further it may rise.")
        self._cap = self._knob(unit, "cap", usual.cap, "How many times wider the bounds of the newest version are.")

    def take(self) -> Decay:
        values = [knob.take() for knob in (self._rate, self._epsilon, self._extra, self._cap)]
        rate, epsilon, extra, cap = values
        return self._made(out_of_date_decay=rate, epsilon=epsilon, extra=extra, cap=cap)

    def _made(self, **numbers: float) -> Decay:
        """ConfigError if the bounds would reach 0."""
        pending = {
            "out_of_date_decay": self._rate.pending,
            "epsilon": self._epsilon.pending,
            "extra": self._extra.pending,
            "cap": self._cap.pending,
        }
        return Decay(strict=self._settings.strict, **(pending | numbers))

    def _knob(self, unit: Unit, name: str, default: float, help: str) -> Knob[float]:
        def preview(value: float) -> str:
            lower, upper = self._made(**{name: value}).bounds(0, 0)
            return f"ratios of the newest version may lie between {lower:.3g} and {upper:.3g} from the next step on"

        return unit.knob(
            f"decay_{name}",
            default,
            boundary="next version",
            help=help,
            minimum=0.0,
            scientific=True,
            preview=preview,
        )


class Knobs:
    """All of them."""

    def __init__(self, unit: Unit, config: RunConfig) -> None:
        training = config.training
        self._config = config
        self._freshness = FreshnessKnobs(unit, config)
        self._decay = DecayKnobs(unit, config)
        self._groups = _counted(
            unit, "groups", training.groups, "Groups of one step.", scientific=True, preview=self._preview_groups
        )
        self._rate = _real(unit, "learning_rate", float(training.learning_rate), "Learning rate.", most=10.0)
        self._low = _real(unit, "clip_low", float(training.clip_low), "How far the ratio may fall.", most=1.0)
        self._high = _real(unit, "clip_high", float(training.clip_high), "How far the ratio may rise.", most=1.0)
        self._optimizer_steps = _counted(
            unit,
            "optimizer_steps",
            training.optimizer_steps,
            "Optimizer steps of one step, each over a part of its groups.",
            scientific=True,
            preview=self._preview_optimizer_steps,
        )
        self._publish = _counted(
            unit,
            "publish_every",
            training.publish_every,
            "Steps of one publication.",
            preview=self._preview_publish_every,
        )
        self._checkpoint = _counted(
            unit, "checkpoint_every", training.checkpoint_every, "Steps between two checkpoints."
        )
        self._evaluate = _counted(
            unit, "evaluate_every", config.evaluation.every, "Publications between two evaluations; 0: none.", least=0
        )
        self._versions = _counted(unit, "keep_versions", config.retention.versions, "Versions whose files are kept.")
        self._checkpoints = _counted(
            unit, "keep_checkpoints", training.keep_checkpoints, "Unpinned checkpoints that are kept."
        )
        self._taken: Plan | None = None

    @property
    def kept(self) -> Kept:
        return Kept(self._versions.take(), self._checkpoints.take())

    def take(self) -> Plan:
        """Pass the boundary."""
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
        """What admission and the batch make of it, by the formula that the steward admits by. ConfigError if it cannot
        be followed."""
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
        decays = any(rule.strategy == "decay" for rule in (freshness, *freshness.of_environments.values()))
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
            normalise=training.normalise,
            decays_by_time=decays and training.decay.per == "second",
        )


def _refuse_parts(groups: int, count: int) -> None:
    if count > groups:
        raise ConfigError(f"A step of {groups} groups cannot be cut into {count} parts of whole groups.")


def _counted(
    unit: Unit,
    name: str,
    default: int,
    help: str,
    *,
    least: int = 1,
    scientific: bool = False,
    preview: Callable[[int], str] | None = None,
) -> Knob[int]:
    knob: Knob[int] = unit.knob(
        name,
        default,
        boundary="next version",
        help=help,
        minimum=least,
        scientific=scientific,
        preview=preview or (lambda value: _from_the_next_step(knob, value)),
    )
    return knob


def _real(unit: Unit, name: str, default: float, help: str, *, most: float) -> Knob[float]:
    knob: Knob[float] = unit.knob(
        name,
        default,
        boundary="next version",
        help=help,
        minimum=0.0,
        maximum=most,
        scientific=True,
        preview=lambda value: _from_the_next_step(knob, value),
    )
    return knob


def _from_the_next_step(knob: Knob[int] | Knob[float], value: float) -> str:
    change = f"{knob.name} goes from {knob.value:g} to {value:g} with the next step"
    return f"{change}; what is trained already stays, and so does a step that has begun"
