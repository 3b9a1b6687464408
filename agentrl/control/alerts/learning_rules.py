"""Alert rules about learning: numbers of the trainer outside their bands, collapses, and steps that train nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from agentrl.control.alerts.rule_types import (
    Condition,
    Finding,
    OutOfBand,
    RunSnapshot,
    evidence_line,
    is_outside,
    trainers,
)
from agentrl.formatting.amounts import age, counted
from agentrl.protocol.rows import Severity
from agentrl.telemetry import learning_metrics as of

MOST_CUT_OFF = 0.5
"""If more attempts than this are cut off at a limit, the limit is the first thing to change."""
COLLAPSE_CLEAR = 0.8
"""An alert about a collapse ends below this, in units of both margins of error."""
CAUSE_WITHIN_S = 3600.0
"""A change earlier than this before the fall is not named as its cause."""
NO_SIGNAL = "Groups whose records all score the same teach nothing: the task is too hard, too easy, or scored wrongly."
REWARD_GAIN = 0.05
"""If the reward rises by more than this, lower entropy and longer records are the result of learning: no alert."""
LOWER_RATE = "agentrl tune learning_rate"
PAUSE = "agentrl pause {unit}"


def nothing_trained(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    """Find a run that takes steps and trains nothing, which looks healthy otherwise.

    From ten steps on `learning-no-signal` has better evidence, so no new alert begins here. An active alert stays until
    the trainer reports a step that trained, through restarts and missing reports.
    """
    at_work = trainers(snapshot)
    for name, unit in snapshot.units.items():
        if unit.role != "trainer" or not unit.leads:
            continue
        numbers = snapshot.metrics.values(name)
        steps = numbers.get(of.NOTHING_TRAINED.name)
        stays = name in active and steps != 0
        begins = (
            name in at_work
            and of.ZERO_VARIANCE_LATELY.name not in numbers
            and is_outside(of.NOTHING_TRAINED, numbers, active=False)
        )
        cut_off = numbers.get(of.CUT_OFF.name, 0.0) > MOST_CUT_OFF
        evidence = [f"{of.NOTHING_TRAINED.name} = {steps:.0f}"] if steps else []
        evidence += [evidence_line(of.CUT_OFF, numbers)] if cut_off else []
        if unit.done and (steps or stays):
            sentence, cure = f"{name} has ended, and no step trained anything.", "agentrl steps list"
        elif begins or stays:
            made = f"has made {counted(round(steps), 'steps')}, and none of them" if steps else "has made no step that"
            sentence, cure = f"{name} {made} trained anything.", "agentrl tune temperature"
            if cut_off:
                sentence += f" {numbers[of.CUT_OFF.name]:.0%} of the newest attempts were cut off at a limit."
                cure = "agentrl tune max_tokens"
        else:
            continue
        yield Finding(name, sentence, (*evidence, NO_SIGNAL), cure)


def collapsed(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    """Find evaluations or rewards far below the best of the run.

    An active alert ends when the trainer reports numbers near the best again, so it outlives restarts of the trainer.
    """
    for name, unit in snapshot.units.items():
        numbers = snapshot.metrics.values(name)
        collapse = numbers.get(of.COLLAPSE.name)
        if unit.role != "trainer" or collapse is None:
            if unit.role == "trainer" and name in active:
                waits = f"Learning had collapsed, and {name} has not reported a new evaluation."
                yield Finding(name, waits, ("the alert ends when an evaluation is near the best again",), "agentrl why")
        elif collapse > (COLLAPSE_CLEAR if name in active else 1):
            target = numbers.get(of.ROLLBACK_VERSION.name)
            cure = "agentrl checkpoints list"
            if target is not None:
                cure = f"agentrl rollback --to {target:.0f} --reason 'learning collapsed'"
            cause = _cause(snapshot, numbers)
            sentence = f"{_fall(numbers)}{f', {cause}' if cause else ''}."
            yield Finding(name, sentence, tuple(_collapse_evidence(snapshot, numbers, cause)), cure)


def _fall(numbers: Mapping[str, float]) -> str:
    """Name the larger of two collapses: evaluation may be a little below its best while the reward has collapsed."""
    falls = [("Evaluation", of.EVALUATION_BEST, of.EVALUATION), ("Reward", of.REWARD_BEST, of.REWARD_LATELY)]
    if numbers.get(of.REWARD_COLLAPSE.name, 0.0) >= numbers[of.COLLAPSE.name]:
        falls.reverse()
    for name, best, now in falls:
        if best.name in numbers and numbers.get(now.name, math.inf) < numbers[best.name]:
            return f"{name} fell from {numbers[best.name]:.2f} to {numbers[now.name]:.2f}"
    return "Learning has collapsed"


def _cause(snapshot: RunSnapshot, numbers: Mapping[str, float]) -> str:
    """The last scientific change before the fall: `3 s after learning_rate 0.0005 -> 0.05 by root`."""
    began_at = numbers.get(of.COLLAPSE_BEGAN.name)
    before = [change for change in snapshot.scientific_changes() if began_at is not None and change.at <= began_at]
    if not before or began_at is None or began_at - before[-1].at > CAUSE_WITHIN_S:
        return ""
    last = before[-1]
    return f"{age(began_at - last.at)} after {last.sentence().replace(':', '', 1)} by {last.who}"


def _collapse_evidence(snapshot: RunSnapshot, numbers: Mapping[str, float], cause: str) -> Iterator[str]:
    if of.EVALUATION_BEST.name in numbers and of.EVALUATION.name in numbers:
        version = numbers.get(of.EVALUATION_BEST_VERSION.name, 0.0)
        margin = numbers.get(of.EVALUATION_MARGIN.name, 0.0)
        yield (
            f"evaluation {numbers[of.EVALUATION.name]:.2f} ± {margin:.2f}; "
            f"the best was {numbers[of.EVALUATION_BEST.name]:.2f} at version {version:.0f}"
        )
    if of.REWARD_BEST.name in numbers and of.REWARD_LATELY.name in numbers:
        yield (
            f"reward of ten steps {numbers[of.REWARD_LATELY.name]:.2f}; the best was {numbers[of.REWARD_BEST.name]:.2f}"
        )
    if cause:
        yield f"began {cause}"
    elif of.COLLAPSE_BEGAN.name in numbers:
        yield "no scientific knob was changed shortly before it"
    else:
        yield "when it began is not known"
    yield "A rollback restores the weights and scientific settings of the checkpoint; it can be undone."


def _reward_rises(numbers: Mapping[str, float]) -> bool:
    return numbers.get(of.REWARD_GAIN.name, 0.0) > REWARD_GAIN


BANDS = (
    OutOfBand(
        "learning-mismatch",
        (of.MISMATCH_OVER_LIMIT, of.MISMATCH_P99_OVER_LIMIT, of.MISMATCH_K3_OVER_LIMIT),
        "Engine and trainer disagree about the same tokens: {value} times the limit. This is a fault.",
        PAUSE,
        (of.MISMATCH_MEAN, of.MISMATCH_P99, of.MISMATCH_K3),
        severity=Severity.PAGE,
    ),
    OutOfBand(
        "learning-drift",
        (of.WEIGHT_MEAN, of.ESS, of.WEIGHT_STD, of.ACCEPTED),
        "The policy has moved far away from the one that its batches were sampled from.",
        "agentrl tune bound",
    ),
    OutOfBand(
        "learning-reference",
        (of.KL_REFERENCE,),
        "The KL of the policy to its reference is {value} per token.",
        LOWER_RATE,
        (of.REWARD, of.ENTROPY),
    ),
    OutOfBand(
        "learning-entropy",
        (of.ENTROPY_KEPT,),
        "The entropy of the policy is {value} of its value fifty steps ago, and the reward has not risen.",
        LOWER_RATE,
        (of.ENTROPY, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-gradient",
        (of.GRADIENT_OVER_MEDIAN,),
        "The norm of the gradient is {value} times its usual value.",
        LOWER_RATE,
        (of.GRADIENT,),
    ),
    OutOfBand(
        "learning-no-signal",
        (of.ZERO_VARIANCE_LATELY,),
        "{groups_without_signal_lately} of the last {groups_lately} groups teach nothing: all records of a group score "
        "the same.",
        "agentrl tune temperature",
        (of.WITHOUT_SIGNAL_LATELY, of.GROUPS_LATELY, of.REWARD),
    ),
    OutOfBand(
        "learning-truncation",
        (of.TRUNCATION_RISE,),
        "More and more records are cut off at a limit.",
        "agentrl tune max_tokens",
        (of.TRUNCATION, of.LENGTH),
    ),
    OutOfBand(
        "learning-no-tools",
        (of.TOOL_CALLS_KEPT,),
        "The policy makes only {value} of its earlier tool calls, and the reward has not risen.",
        LOWER_RATE,
        (of.TOOL_CALLS, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-tools-fail",
        (of.TOOL_FAILURES_RISE,),
        "A tool fails more often with each version, and the cause is infrastructure, not the policy.",
        "agentrl why",
        (of.INFRASTRUCTURE, of.TOOL_CALLS),
    ),
    OutOfBand(
        "learning-length",
        (of.LENGTH_JUMP,),
        "Records are {value} times as long as they were twenty steps ago, and the reward has not risen.",
        LOWER_RATE,
        (of.LENGTH, of.REWARD_GAIN),
        unless=_reward_rises,
    ),
    OutOfBand(
        "learning-not-finite",
        (of.NOT_FINITE,),
        "{value} batches in a row gave a loss that is not finite. After three the trainer ends.",
        LOWER_RATE,
        (of.GRADIENT,),
        severity=Severity.PAGE,
    ),
    OutOfBand(
        "learning-overfits",
        (of.EVALUATION_FALL,),
        "The evaluation is {value} below its best while the reward in training rises.",
        PAUSE,
        (of.EVALUATION, of.REWARD, of.REWARD_GAIN),
        unless=lambda numbers: not _reward_rises(numbers),
    ),
    OutOfBand(
        "learning-invalid",
        (of.VALID,),
        "Only {value} of the recent attempts are valid. The trainer takes no steps, because these are a biased sample.",
        "agentrl why",
        (of.INFRASTRUCTURE,),
        severity=Severity.PAGE,
    ),
)

LEARNING_RULES = (
    Condition("learning-nothing", nothing_trained),
    Condition("learning-collapsed", collapsed, severity=Severity.PAGE),
    *BANDS,
)
