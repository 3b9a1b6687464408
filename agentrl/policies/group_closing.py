"""Closing a group: when it may close, which members train, and whether the group has signal.

Scorers may reward turns besides the whole record. The return of a turn is its own reward, the rewards of later turns,
and at the end the score. It is compared with the return of the same turn in the other records of the group; a record
that ended before that turn counts with its score.

Invariants:
- no baseline includes an infrastructure failure;
- the baseline covers all validly scored members, including those that are capped or do not train;
- a group with fewer valid members than required trains none of them;
- a group has signal only if one of its records trains with an advantage other than 0, or if a critic will compute the
  advantages later;
- without rewards every turn has the advantage of its record;
- advantages do not depend on the order of the members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentrl.errors import ConfigError
from agentrl.policies import outcomes
from agentrl.policies.advantages import RIGHT_SCORE, Baseline, Estimator, Overlong, advantage_of, baseline_of, shaped
from agentrl.policies.outcomes import LimitRule, OutcomeClass
from agentrl.policies.status_tables import RecordStatus


class Played(NamedTuple):
    """A record of a group with the rewards of its turns."""

    score: float
    turns: int
    rewards: Sequence[float] = ()
    """By turn; turns beyond the end of the list have no reward."""


def advantages_by_turn(
    members: Sequence[Played], estimator: Estimator, *, divide_by_std: bool = True, discount: float = 1.0
) -> list[list[float]]:
    """For each member the advantage of each of its turns. `discount`: what a reward one turn later is worth."""
    following = [_following(member, discount) for member in members]
    found: list[list[float]] = [[] for _ in members]
    for turn in range(max((member.turns for member in members), default=0)):
        reached = [
            returns[turn] if turn < one.turns else one.score for one, returns in zip(members, following, strict=True)
        ]
        baseline = baseline_of(reached)
        assert baseline is not None
        for one, value, own in zip(members, reached, found, strict=True):
            if turn < one.turns:
                own.append(advantage_of(value, baseline, estimator, divide_by_std=divide_by_std))
    return found


def _following(one: Played, discount: float) -> list[float]:
    found: list[float] = []
    later = one.score
    for turn in reversed(range(one.turns)):
        reward = one.rewards[turn] if turn < len(one.rewards) else 0.0
        # The score belongs to the last turn itself.
        later = reward + (later if turn == one.turns - 1 else discount * later)
        found.append(later)
    return found[::-1]


KEPT = ("limits", "min_range", "sign_clip", "cap_malformed", "turn_spread")
"""Settings that a group keeps from its admission on, besides the penalty for long records."""
_PENALTY = "overlong_penalty"
REDRAWN = (RecordStatus.FAILED, RecordStatus.ABANDONED, RecordStatus.EXCLUDED, RecordStatus.CANCELLED)
"""Another attempt may follow these: after a failure by itself, after the others if an operator requeues them."""


@dataclass(frozen=True, slots=True)
class GroupRule:
    estimator: Estimator = "grpo"
    divide_by_std: bool = True
    """Applies to GRPO only."""
    min_valid: int | None = None
    """Valid members that a group needs; None means half of the group. At least 2 in any case."""
    limits: LimitRule = "cap"
    min_range: float = 0.0
    """A group whose highest and lowest score differ by no more than this has no signal."""
    sign_clip: bool = False
    """Wrong answers get no positive advantage and right ones no negative one."""
    cap_malformed: bool = False
    """Records that continued after a malformed call get no positive advantage."""
    turn_spread: float = 0.0
    """Spread between best and worst of what the number of turns adds to the scores; 0 turns it off."""
    overlong: Overlong | None = None
    overlong_tokens: tuple[int, int] = (0, 0)
    """The range of tokens over which a penalty for long records grows, whether or not a penalty is set now."""
    turn_discount: float = 1.0
    """What a reward one turn later is worth, if scorers give rewards to turns."""

    def kept(self) -> dict[str, float | bool | str]:
        """The settings that a group keeps from its admission on."""
        found: dict[str, float | bool | str] = {name: getattr(self, name) for name in KEPT}
        return found | {_PENALTY: 0.0 if self.overlong is None else self.overlong.penalty}

    def with_kept(self, settings: Mapping[str, float | bool | str]) -> GroupRule:
        """The rule with these settings. Raises ConfigError if a penalty for long records has no range of tokens."""
        same = {name: settings[name] for name in KEPT if name in settings}
        penalty = settings.get(_PENALTY)
        if penalty is None:
            return replace(self, **same)  # type: ignore[arg-type]
        return replace(self, **same, overlong=self.penalty_of(float(penalty)))  # type: ignore[arg-type]

    def of_group(self, kept: Mapping[str, float | bool | str]) -> GroupRule:
        """The rule with the settings that a group kept; the same rule if it kept none. A kept penalty is left out if
        the run file no longer gives its range of tokens, because the group must close anyway."""
        begins, full = self.overlong_tokens
        return self.with_kept({**kept, _PENALTY: 0.0} if begins >= full and kept.get(_PENALTY) else kept)

    def penalty_of(self, penalty: float) -> Overlong | None:
        """The penalty for long records. Raises ConfigError if it has no range of tokens."""
        begins, full = self.overlong_tokens
        return Overlong(begins, full, penalty) if penalty else None


@dataclass(frozen=True, slots=True)
class Member:
    """A record of the round that closes. Excluded and superseded records are not members."""

    record: str
    kind: OutcomeClass
    score: float | None = None
    turns: int = 0
    tokens: int = 0
    """All that it generated."""
    malformed: bool = False
    """It made malformed calls and continued."""
    rewards: tuple[float, ...] = ()
    """The rewards of its turns, besides the score, if the scorer gives them."""
    late: bool = False
    """It ended after the group's deadline: kept, never trained, in no baseline."""

    @property
    def valid(self) -> bool:
        return (
            not self.late and self.score is not None and math.isfinite(self.score) and outcomes.in_baseline(self.kind)
        )


@dataclass(frozen=True, slots=True)
class Share:
    """What a record trains with. It does not train if the advantage is None."""

    advantage: float | None
    """With a critic: the score of the record, possibly shaped."""
    capped: bool = False
    """Its advantage stays at or below 0 after any later normalization."""
    turns: tuple[float, ...] = ()
    """If turns have rewards: the advantage of each turn. With a critic: the rewards."""


@dataclass(frozen=True, slots=True)
class Closed:
    enough: bool
    """Whether enough members are valid; if not, the task goes to its next round."""
    signal: bool
    baseline: Baseline | None
    shares: Mapping[str, Share]
    why: str
    """Why the group has no signal."""


def seat_settled(latest: RecordStatus, *, may_redraw: bool) -> bool:
    """Whether a seat is done: its latest attempt is scored, or ended otherwise and may not be redrawn."""
    if latest in REDRAWN:
        return not may_redraw
    return latest in (RecordStatus.SCORED, RecordStatus.UNSCORABLE)


def may_close(settled: Iterable[bool], *, past_deadline: bool) -> bool:
    return past_deadline or all(settled)


def required_valid(n: int, min_valid: int | None) -> int:
    return max(2, math.ceil(n / 2) if min_valid is None else min_valid)


def refuse_impossible(n: int, rule: GroupRule) -> None:
    """Raises ConfigError if no group of n could ever train."""
    if n < 2:
        raise ConfigError(f"A group of {n} has nothing to compare its records with.", hint="Set n to 2 or more.")
    if required_valid(n, rule.min_valid) > n:
        raise ConfigError(f"min_valid is {rule.min_valid}, and a group has only {n} members.")


def another_round(rounds_sampled: int, rounds_max: int) -> bool:
    """Whether a task that could not be trained is sampled again; otherwise it is dead."""
    return rounds_sampled < rounds_max


def close(members: Sequence[Member], n: int, rule: GroupRule, *, trains: bool = True) -> Closed:
    """Closes a group of n seats. With `trains=False` (evaluation, probes) any number of valid members is enough."""
    valid = [member for member in members if member.valid]
    no_shares = {member.record: Share(None) for member in members}
    needed = required_valid(n, rule.min_valid) if trains else 0
    if len(valid) < needed:
        return Closed(False, False, None, no_shares, f"{len(valid)} of {n} are valid, {needed} are needed")
    scores = shaped(
        [member.score or 0.0 for member in valid],
        [member.turns for member in valid],
        rule.turn_spread,
        tokens=[member.tokens for member in valid],
        overlong=rule.overlong,
    )
    baseline = baseline_of(scores)
    if not trains:
        return Closed(True, False, baseline, no_shares, "it does not train")
    by_turn = _by_turn(valid, scores, rule)
    if rule.estimator != "gae" and not any(by_turn) and (flat := _flat(scores, rule.min_range)):
        return Closed(True, False, baseline, no_shares, flat)
    assert baseline is not None
    shares = {
        member.record: _share(member, score, turns, baseline, rule)
        for member, score, turns in zip(valid, scores, by_turn, strict=True)
    }
    signal = any(_has_signal(share, rule) for share in shares.values())
    why = "" if signal else "no record that trains has an advantage"
    return Closed(True, signal, baseline, no_shares | shares, why)


def _flat(scores: Sequence[float], min_range: float) -> str:
    """Why these scores have no signal. The variance of equal numbers may not round to 0, so scores are compared."""
    lowest, highest = min(scores), max(scores)
    if lowest == highest:
        return f"all scores are {lowest:g}"
    if highest - lowest <= min_range:
        return f"the scores span only {highest - lowest:g}"
    return ""


def _has_signal(share: Share, rule: GroupRule) -> bool:
    if rule.estimator == "gae":
        return share.advantage is not None
    return bool(share.advantage) if not share.turns else any(share.turns)


def _by_turn(members: Sequence[Member], scores: Sequence[float], rule: GroupRule) -> list[Sequence[float]]:
    """Empty for each member if no turn has a reward."""
    if not any(any(member.rewards) for member in members):
        return [() for _ in members]
    if rule.estimator == "gae":
        return [member.rewards for member in members]
    played = [Played(score, member.turns, member.rewards) for member, score in zip(members, scores, strict=True)]
    return list(
        advantages_by_turn(played, rule.estimator, divide_by_std=rule.divide_by_std, discount=rule.turn_discount)
    )


def _share(member: Member, score: float, turns: Sequence[float], baseline: Baseline, rule: GroupRule) -> Share:
    if not outcomes.trains(member.kind, rule.limits):
        return Share(None)
    advantage = advantage_of(score, baseline, rule.estimator, divide_by_std=rule.divide_by_std)
    capped = outcomes.capped(member.kind, rule.limits) or (rule.cap_malformed and member.malformed)
    if rule.estimator == "gae":
        # With a critic these are scores. Its advantages are capped after it has computed them.
        return Share(advantage, capped, tuple(turns))
    right = member.score is not None and member.score > RIGHT_SCORE

    def held(one: float) -> float:
        if rule.sign_clip:
            one = max(one, 0.0) if right else min(one, 0.0)
        return min(one, 0.0) if capped else one

    return Share(held(advantage), capped, tuple(map(held, turns)))
