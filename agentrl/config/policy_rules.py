"""Builds the rules of the pure policies from the configuration.

Invariants:
- Steward, samplers and trainer of a run close tasks, admit and cut batches by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from agentrl.config.data_plane import DataPlane, Environment, Problem
from agentrl.config.loss_keys import DecaySettings, MaskSettings
from agentrl.config.training import OverlongSettings, Training
from agentrl.errors import ConfigError
from agentrl.policies.advantages import Estimator, Overlong
from agentrl.policies.curriculum import Stage, Until, Window
from agentrl.policies.freshness import Decay, Freshness, Strategy
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.learning_rates import Schedule
from agentrl.policies.loss_settings import CriticRule, Interval, Masks, PolicyLoss

_OF_GROUP_ADVANTAGES = ("normalise", "balance", "sign_clip", "min_range")
_ESTIMATORS: Mapping[str, Estimator] = {"grpo": "grpo", "leave-one-out": "leave_one_out", "gae": "gae"}


def group_rule(config: DataPlane) -> GroupRule:
    """The rule by which groups close."""
    training = config.training
    return GroupRule(
        estimator=_ESTIMATORS[training.advantage],
        divide_by_std=training.divide_by_std,
        min_valid=training.min_valid or None,
        limits=training.limits,
        min_range=float(training.min_range),
        sign_clip=training.sign_clip,
        cap_malformed=training.cap_malformed,
        turn_spread=float(training.turn_spread),
        overlong=overlong(training.overlong),
        overlong_tokens=(training.overlong.begins, training.overlong.full),
        turn_discount=float(training.turn_discount),
    )


def overlong(settings: OverlongSettings) -> Overlong | None:
    """The penalty for overlong records. Raises ConfigError if the penalty has no range of tokens over which to grow."""
    if not settings.penalty:
        return None
    return Overlong(settings.begins, settings.full, float(settings.penalty))


def freshness(config: DataPlane) -> Freshness:
    """The rule that decides which records may still train, with the rules of single environments."""
    training = config.training
    usual = freshness_rule(
        training.strategy, training.bound, training.hard_bound, wait_limit_s=float(training.wait_limit_s)
    )
    own = {
        name: freshness_of(each, usual, training.hard_bound)
        for name, each in config.environments.items()
        if (each.bound, each.hard_bound, each.strategy) != (None, None, None)
    }
    return replace(usual, of_environments=own)


def freshness_rule(strategy: Strategy, bound: int, hard_bound: int, *, wait_limit_s: float) -> Freshness:
    """A rule of freshness. A hard bound of 0 means the bound. Raises ConfigError if the hard bound is smaller than the
    bound."""
    return Freshness(strategy, bound, hard_bound or None, wait_limit_s)


def freshness_of(environment: Environment, usual: Freshness, hard_bound: int) -> Freshness:
    """The rule of an environment: its own values, else those of the run."""
    bound = usual.bound if environment.bound is None else environment.bound
    hard = hard_bound if environment.hard_bound is None else environment.hard_bound
    if environment.hard_bound is None and hard < bound:
        hard = bound  # The environment sets only its bound.
    return freshness_rule(environment.strategy or usual.strategy, bound, hard, wait_limit_s=usual.wait_limit_s)


def decay(settings: DecaySettings) -> Decay:
    """The rule of the strategy `decay`. Raises ConfigError if the bounds would reach 0."""
    return Decay(
        out_of_date_decay=float(settings.out_of_date_decay),
        epsilon=float(settings.epsilon),
        extra=float(settings.extra),
        cap=float(settings.cap),
        strict=settings.strict,
    )


def policy_loss(training: Training, *, longest: int, with_decay: Decay | None = None) -> PolicyLoss:
    """The rule of the policy loss. `longest`: the most tokens of a record. Raises ConfigError if the settings
    contradict each other."""
    return PolicyLoss(
        kind="grpo" if training.loss == "sft" else training.loss,
        clip_low=float(training.clip_low),
        clip_high=float(training.clip_high),
        dual_clip=float(training.dual_clip) or None,
        ratio=training.ratio,
        ratio_cap=float(training.ratio_cap) or None,
        kept_below=float(training.kept_below),
        kept_above=float(training.kept_above),
        weight_cap=float(training.weight_cap) or None,
        weight_by=training.weight_by,
        weight_normalised=training.weight_normalised,
        masks=masks(training.masks),
        reference_weight=float(training.reference_weight),
        reference_in=training.reference_in,
        decay=with_decay,
        aggregation=training.aggregation,
        longest=longest,
        denominator=training.denominator,
        critic=critic(training),
    )


def critic(training: Training) -> CriticRule | None:
    """The rule of the critic; None without one."""
    if training.advantage != "gae":
        return None
    given = training.critic
    return CriticRule(
        discount=float(given.discount),
        trace=float(given.trace),
        clip=float(given.clip),
        normalise=given.normalise,
        alone=given.alone,
    )


def refuse_with_a_critic(training: Training, settings: Mapping[str, object]) -> None:
    """Raises ConfigError if one of these settings scales advantages, or compares records within their group, which a
    critic does not allow."""
    others = [name for name in _OF_GROUP_ADVANTAGES if settings.get(name)]
    if others and training.advantage == "gae":
        raise ConfigError(
            f"{' and '.join(others)} are for advantages of groups, and a critic gives them to tokens (advantage: gae).",
            hint="Leave them out; critic.normalise scales the advantages of a critic.",
        )


def stages(config: DataPlane) -> tuple[Stage, ...]:
    """The curriculum."""
    made = []
    for each in config.curriculum:
        end = each.until
        until = None if end is None else Until(end.environment, float(end.score), end.groups)
        made.append(Stage({name: float(weight) for name, weight in each.mix.items()}, until, dict(each.scorers)))
    return tuple(made)


def window(environment: Environment) -> Window | None:
    """The rule that decides which rows of its dataset are sampled again."""
    wanted = environment.difficulty
    return None if wanted is None else Window(float(wanted.least), float(wanted.most))


def masks(settings: MaskSettings) -> Masks:
    """The rule of masks. Raises ConfigError if an interval has only one end, or does not contain 1."""
    return Masks(
        token=_interval("token", settings.token),
        sequence=_interval("sequence", settings.sequence),
        geometric=_interval("geometric", settings.geometric),
        k2=float(settings.k2) or None,
        k3=float(settings.k3) or None,
    )


def _interval(name: str, ends: tuple[float, ...]) -> Interval | None:
    match ends:
        case ():
            return None
        case (low, high):
            return float(low), float(high)
    raise ConfigError(f"masks.{name} must be two numbers, [LOW, HIGH].")


def schedule(training: Training) -> Schedule:
    """The schedule of the learning rate. Raises ConfigError if the rate would never fall."""
    wanted = training.schedule
    last = wanted.steps or training.steps
    return Schedule(kind=wanted.kind, rise=wanted.rise, last=last, lowest=float(wanted.lowest))


def problems_of(config: DataPlane) -> Iterator[Problem]:
    """The key and the message of each setting that cannot become a rule."""
    checks: dict[tuple[str, ...], Callable[[], object]] = {
        ("training", "hard_bound"): lambda: freshness(config),
        ("training", "decay"): lambda: decay(config.training.decay),
        ("training", "overlong"): lambda: overlong(config.training.overlong),
        ("training", "schedule"): lambda: schedule(config.training),
        ("training",): lambda: _loss_of(config),
    }
    for place, make in checks.items():
        try:
            make()
        except ConfigError as refused:
            yield place, f"cannot be followed: {refused.message}"


def _loss_of(config: DataPlane) -> PolicyLoss:
    training = config.training
    refuse_with_a_critic(training, dict(training))
    bounds = decay(training.decay) if freshness(config).decays else None
    return policy_loss(training, longest=config.sampling.context, with_decay=bounds)
