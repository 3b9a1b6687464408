"""Closing a group: baseline, advantages, and whether there is anything to learn from it.

Invariants: infrastructure failures are in no baseline; the baseline is over all validly scored members, also those that
are capped or do not train; fewer valid ones than asked for train nobody; advantages do not depend on the order of the
members; a group has signal only if a record of it trains with an advantage other than 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.policies import outcomes
from agentrl.policies.outcomes import LimitRule, OutcomeClass
from agentrl.policies.states import RecordStatus

STD_FLOOR = 1e-4
ENVIRONMENT_STD_FLOOR = 1e-6
RIGHT_SCORE = 0.5
"""Scores above it count as right."""


@dataclass(frozen=True, slots=True)
class GroupRule:
    estimator: Literal["grpo", "leave_one_out"] = "grpo"
    divide_by_std: bool = True
    """Only for GRPO."""
    min_valid: int | None = None
    """Valid members that a group needs; None: half of it. Never fewer than 2."""
    limits: LimitRule = "cap"
    min_range: float = 0.0
    """A group whose scores span no more than this has no signal."""
    sign_clip: bool = False
    """Wrong answers never gain and right ones never lose."""
    cap_malformed: bool = False
    """Records with malformed calls that did not end them never gain."""
    turn_spread: float = 0.0
    """What the number of turns adds to the scores, from the best to the worst; 0: nothing."""


@dataclass(frozen=True, slots=True)
class Member:
    """A Record of the round that closes. Excluded and superseded ones are no members."""

    record: str
    kind: OutcomeClass
    score: float | None = None
    turns: int = 0
    malformed: bool = False
    """It made malformed calls and went on."""
    late: bool = False
    """It came after the group's deadline: kept, never trained, in no baseline."""

    @property
    def valid(self) -> bool:
        return (
            not self.late and self.score is not None and math.isfinite(self.score) and outcomes.in_baseline(self.kind)
        )


@dataclass(frozen=True, slots=True)
class Baseline:
    mean: float
    std: float
    valid: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a record takes out of its group. An advantage of None means that it does not train."""

    advantage: float | None
    capped: bool = False
    """Its advantage stays at or below 0, whatever is done to it later."""


@dataclass(frozen=True, slots=True)
class Closed:
    enough: bool
    """Whether enough members are valid; if not, the Task goes to its next round."""
    signal: bool
    baseline: Baseline | None
    shares: Mapping[str, Share]
    why: str
    """In words, where there is no signal."""


def seat_settled(latest: RecordStatus, *, may_redraw: bool) -> bool:
    """Whether nothing more comes from a seat: its latest attempt is scored, or there is none after it."""
    if latest in (RecordStatus.FAILED, RecordStatus.ABANDONED):
        return not may_redraw
    return latest in (RecordStatus.SCORED, RecordStatus.UNSCORABLE, RecordStatus.EXCLUDED)


def may_close(settled: Iterable[bool], *, past_deadline: bool) -> bool:
    return past_deadline or all(settled)


def required_valid(n: int, min_valid: int | None) -> int:
    return max(2, math.ceil(n / 2) if min_valid is None else min_valid)


def refuse_impossible(n: int, rule: GroupRule) -> None:
    """ConfigError if no group of n could ever train."""
    if n < 2:
        raise ConfigError(f"A group of {n} has nothing to be compared with.", hint="Set n to 2 or more.")
    if required_valid(n, rule.min_valid) > n:
        raise ConfigError(f"min_valid is {rule.min_valid}, and a group has only {n} members.")


def another_round(rounds_sampled: int, rounds_max: int) -> bool:
    """Whether a Task that could not be trained is sampled again, or dead."""
    return rounds_sampled < rounds_max


def close(members: Sequence[Member], n: int, rule: GroupRule, *, trains: bool = True) -> Closed:
    """Close a group of n seats. With `trains=False` (evaluation, probes) any number of valid members will do."""
    valid = [member for member in members if member.valid]
    nobody = {member.record: Share(None) for member in members}
    needed = required_valid(n, rule.min_valid) if trains else 0
    if len(valid) < needed:
        return Closed(False, False, None, nobody, f"{len(valid)} of {n} are valid, {needed} are needed")
    scores = shaped([member.score or 0.0 for member in valid], [member.turns for member in valid], rule.turn_spread)
    baseline = baseline_of(scores)
    if not trains:
        return Closed(True, False, baseline, nobody, "it does not train")
    if flat := _flat(scores, rule.min_range):
        return Closed(True, False, baseline, nobody, flat)
    assert baseline is not None
    shares = {
        member.record: _share(member, _advantage(score, baseline, rule), rule)
        for member, score in zip(valid, scores, strict=True)
    }
    signal = any(share.advantage for share in shares.values())
    return Closed(True, signal, baseline, nobody | shares, "" if signal else "no record that trains has an advantage")


def shaped(scores: Sequence[float], turns: Sequence[int], spread: float) -> list[float]:
    """The scores that a baseline is made of."""
    if not spread:
        return list(scores)
    bonus = turn_bonus(turns, [score > RIGHT_SCORE for score in scores], spread)
    return [score + more for score, more in zip(scores, bonus, strict=True)]


def turn_bonus(turns: Sequence[int], right: Sequence[bool], spread: float) -> list[float]:
    """What turns add to scores: among right ones fewer are better, among wrong ones more (giving up is worse).

    Each half is ranked apart, ties share the mean of their ranks, and each half adds up to 0.
    """
    bonus = [0.0] * len(turns)
    for half in (True, False):
        places = [place for place, is_right in enumerate(right) if is_right is half]
        if len(places) < 2:
            continue
        worth = {place: -turns[place] if half else turns[place] for place in places}
        for place in places:
            worse = sum(worth[other] < worth[place] for other in places)
            better = sum(worth[other] > worth[place] for other in places)
            bonus[place] = spread / 2 * ((worse - better) / (len(places) - 1))
    return bonus


def baseline_of(scores: Sequence[float]) -> Baseline | None:
    if not scores:
        return None
    # fsum is exact but for its last rounding, so the order of the members does not show.
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores) / len(scores)
    return Baseline(mean, math.sqrt(variance), len(scores))


def _flat(scores: Sequence[float], min_range: float) -> str:
    """Why these scores teach nothing. Compared as they are: the variance of equal numbers need not round to 0."""
    lowest, highest = min(scores), max(scores)
    if lowest == highest:
        return f"all scores are {lowest:g}"
    if highest - lowest <= min_range:
        return f"the scores span only {highest - lowest:g}"
    return ""


def _advantage(score: float, baseline: Baseline, rule: GroupRule) -> float:
    above = score - baseline.mean
    if rule.estimator == "leave_one_out":
        return baseline.valid / (baseline.valid - 1) * above
    return above / (baseline.std + STD_FLOOR) if rule.divide_by_std else above


def _share(member: Member, advantage: float, rule: GroupRule) -> Share:
    if not outcomes.trains(member.kind, rule.limits):
        return Share(None)
    right = member.score is not None and member.score > RIGHT_SCORE
    if rule.sign_clip:
        advantage = max(advantage, 0.0) if right else min(advantage, 0.0)
    capped = outcomes.capped(member.kind, rule.limits) or (rule.cap_malformed and member.malformed)
    return Share(min(advantage, 0.0) if capped else advantage, capped)


# ---- over a batch ----


@dataclass(frozen=True, slots=True)
class Trained:
    """A record of a batch, for the normalisation over its environment."""

    environment: str
    group: str
    advantage: float
    tokens: int
    capped: bool = False


def normalised(records: Sequence[Trained]) -> list[float]:
    """Advantages with mean 0 and spread 1 over the trained tokens of each environment, in the order of the records.

    An environment with fewer than two groups in the batch stays as it is. Capped advantages are capped again:
    subtracting a negative mean must not reward what ran into a limit.
    """
    scales = {environment: _scale(records, environment) for environment in {record.environment for record in records}}
    answer = []
    for record in records:
        mean, std = scales[record.environment]
        advantage = (record.advantage - mean) / std
        answer.append(min(advantage, 0.0) if record.capped else advantage)
    return answer


def _scale(records: Sequence[Trained], environment: str) -> tuple[float, float]:
    members = [record for record in records if record.environment == environment]
    tokens = sum(record.tokens for record in members)
    if len({record.group for record in members}) < 2 or not tokens:
        return 0.0, 1.0
    mean = math.fsum(record.advantage * record.tokens for record in members) / tokens
    variance = math.fsum((record.advantage - mean) ** 2 * record.tokens for record in members) / tokens
    return mean, math.sqrt(variance) + ENVIRONMENT_STD_FLOOR
