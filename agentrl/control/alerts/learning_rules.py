"""The rules about learning: numbers that leave the band in which a healthy run stays.

Invariants: a rule looks at the newest numbers of a trainer that is at work and at nothing else; what is compared with
Steps before is compared by the trainer, from the store, so neither its restart nor a coordinator's loses the evidence;
a number that is not there accuses nobody. An alert that stands ends a little inside the band, not at its edge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from agentrl.control.alerts.lifecycle import Finding, World
from agentrl.formatting.amounts import counted
from agentrl.protocol.rows import Severity, UnitRow, UnitState
from agentrl.telemetry import learning as of
from agentrl.telemetry.metrics import Metric

EASE = 0.1
"""Share of the limit by which a number has to come back into its band."""
LEARNS = 0.05
"""A gain in reward that explains much: what looks like a collapse may be a policy that has found what works."""

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class OutOfBand:
    """One metric, or several of which one is enough, out of their normal bands."""

    name: str
    severity: Severity
    metrics: tuple[Metric, ...]
    sentence: str
    """`{unit}`, `{value}` and the names of metrics are replaced."""
    suggest: str
    beside: tuple[Metric, ...] = ()
    """More evidence."""
    unless: Callable[[Numbers], bool] = lambda numbers: False
    """An innocent explanation."""
    for_s: float = 0.0
    certain: bool = False

    def check(self, world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
        for name, unit in trainers(world).items():
            numbers = world.metrics.values(name)
            outside = [metric for metric in self.metrics if is_outside(metric, numbers, standing=name in alerting)]
            if outside and not self.unless(numbers):
                yield self._finding(unit, outside[0], numbers)

    def _finding(self, unit: UnitRow, worst: Metric, numbers: Numbers) -> Finding:
        shown = [metric for metric in (*self.metrics, *self.beside) if metric.name in numbers]
        words = {metric.name: metric.in_words(numbers[metric.name]) for metric in shown}
        words |= {"unit": unit.unit, "value": worst.in_words(numbers[worst.name])}
        sentence, suggest = self.sentence, self.suggest
        for word, value in words.items():
            sentence, suggest = sentence.replace(f"{{{word}}}", value), suggest.replace(f"{{{word}}}", value)
        told = [evidence(metric, numbers) for metric in shown]
        step = f"as of step {numbers['step']:.0f}" if "step" in numbers else ""
        return Finding(unit.unit, sentence, tuple(line for line in (*told, step) if line), suggest)


def nothing_trained(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    """A run that takes steps and learns nothing looks like a good one; with ten steps `learning-no-signal` tells more,
    and is left to tell it unless this was told before. What was found stays found until the trainer says that a step
    trained: whether it starts again, stands still or has ended, and whoever has not heard its numbers yet."""
    at_work = trainers(world)
    for name, unit in world.units.items():
        if unit.role != "trainer":
            continue
        numbers = world.metrics.values(name)
        steps = numbers.get(of.NOTHING_TRAINED.name)
        cut_off = numbers.get(of.CUT_OFF.name, 0.0) > _MOST
        told = (
            *((f"{of.NOTHING_TRAINED.name} = {steps:.0f}",) if steps else ()),
            *((evidence(of.CUT_OFF, numbers),) if cut_off else ()),
            _WHY_NOTHING,
        )
        stands = name in alerting and steps != 0
        begins = (
            name in at_work
            and of.ZERO_VARIANCE_LATELY.name not in numbers
            and is_outside(of.NOTHING_TRAINED, numbers, standing=False)
        )
        if unit.done and (steps or stands):
            yield Finding(name, f"{name} has ended, and no step trained anything.", told, "agentrl steps list")
        elif begins or stands:
            made = f"has made {counted(round(steps), 'steps')}, and none of them" if steps else "has made no step that"
            sentence, cure = f"{name} {made} trained anything.", "agentrl tune temperature"
            if cut_off:
                sentence += f" {numbers[of.CUT_OFF.name]:.0%} of the newest attempts were cut off at a limit."
                cure = "agentrl tune max_tokens"
            yield Finding(name, sentence, told, cure)


_MOST = 0.5
"""With more attempts than this cut off, that is what to look at first."""
_WHY_NOTHING = "Groups whose records all score the same teach nothing: the task is too hard, too easy, or misjudged."


def trainers(world: World) -> dict[str, UnitRow]:
    at_work = (UnitState.READY, UnitState.SUSPECT)
    return {name: unit for name, unit in world.units.items() if unit.role == "trainer" and unit.state in at_work}


def is_outside(metric: Metric, numbers: Numbers, *, standing: bool) -> bool:
    value = numbers.get(metric.name)
    if value is None or metric.normal is None:
        return False
    low, high = metric.normal
    inwards = EASE if standing else 0.0
    return value < low + inwards * _size(low) or value > high - inwards * _size(high)


def _size(limit: float) -> float:
    """Of a side that has no limit: nothing."""
    return abs(limit) if isfinite(limit) else 0.0


def evidence(metric: Metric, numbers: Numbers) -> str:
    band = f" (normal: {metric.band_in_words()})" if metric.normal is not None else ""
    return f"{metric.name} = {metric.in_words(numbers[metric.name])}{band}: {metric.help}"


def _reward_rises(numbers: Numbers) -> bool:
    return numbers.get(of.REWARD_GAIN.name, 0.0) > LEARNS


LOWER_RATE = "agentrl tune learning_rate"
PAUSE = "agentrl pause {unit}"

OUT_OF_BAND = (
    OutOfBand(
        "learning-mismatch",
        Severity.PAGE,
        (of.MISMATCH_OVER_LIMIT, of.MISMATCH_P99_OVER_LIMIT, of.MISMATCH_K3_OVER_LIMIT),
        "Engine and trainer disagree about the same tokens, {value} times more than is allowed. This is a fault.",
        PAUSE,
        (of.MISMATCH_MEAN, of.MISMATCH_P99, of.MISMATCH_K3),
    ),
    OutOfBand(
        "learning-drift",
        Severity.WARNING,
        (of.WEIGHT_MEAN, of.ESS, of.WEIGHT_STD, of.ACCEPTED),
        "The policy has moved far away from what its batches were sampled from.",
        "agentrl tune bound",
    ),
    OutOfBand(
        "learning-reference",
        Severity.WARNING,
        (of.KL_REFERENCE,),
        "The policy is {value} of a token away from its reference.",
        LOWER_RATE,
        (of.REWARD, of.ENTROPY),
    ),
    OutOfBand(
        "learning-entropy",
        Severity.WARNING,
        (of.ENTROPY_KEPT,),
        "The policy's entropy is {value} of what it was fifty steps ago, and the reward has not risen for it.",
        LOWER_RATE,
        (of.ENTROPY, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-gradient",
        Severity.WARNING,
        (of.GRADIENT_OVER_MEDIAN,),
        "The gradient is {value} times as long as usual.",
        LOWER_RATE,
        (of.GRADIENT,),
    ),
    OutOfBand(
        "learning-no-signal",
        Severity.WARNING,
        (of.ZERO_VARIANCE_LATELY,),
        "{groups_without_signal_lately} of the last {groups_lately} groups teach nothing: all records of a group score "
        "the same.",
        "agentrl tune temperature",
        (of.WITHOUT_SIGNAL_LATELY, of.GROUPS_LATELY, of.REWARD),
    ),
    OutOfBand(
        "learning-truncation",
        Severity.WARNING,
        (of.TRUNCATION_RISE,),
        "More and more records are cut off at a limit.",
        "agentrl tune max_tokens",
        (of.TRUNCATION, of.LENGTH),
    ),
    OutOfBand(
        "learning-no-tools",
        Severity.WARNING,
        (of.TOOL_CALLS_KEPT,),
        "The policy hardly calls tools any more: {value} of what it did.",
        LOWER_RATE,
        (of.TOOL_CALLS, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-tools-fail",
        Severity.WARNING,
        (of.TOOL_FAILURES_RISE,),
        "A tool fails more and more often as versions go on, and not by the policy's doing.",
        "agentrl why",
        (of.INFRASTRUCTURE, of.TOOL_CALLS),
    ),
    OutOfBand(
        "learning-length",
        Severity.WARNING,
        (of.LENGTH_JUMP,),
        "Records are {value} times as long as they were twenty steps ago.",
        LOWER_RATE,
        (of.LENGTH, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-not-finite",
        Severity.PAGE,
        (of.NOT_FINITE,),
        "{value} batches in a row gave a loss that is not finite; three end the trainer.",
        LOWER_RATE,
        (of.GRADIENT,),
    ),
    OutOfBand(
        "learning-overfits",
        Severity.WARNING,
        (of.EVALUATION_FALL,),
        "The evaluation is {value} below its best while the reward in training rises.",
        PAUSE,
        (of.EVALUATION, of.REWARD, of.REWARD_GAIN),
        unless=lambda numbers: not _reward_rises(numbers),
    ),
    OutOfBand(
        "learning-invalid",
        Severity.PAGE,
        (of.VALID,),
        "Only {value} of the recent attempts are valid: the trainer takes no step, what is left is no fair sample.",
        "agentrl why",
        (of.INFRASTRUCTURE,),
    ),
)
