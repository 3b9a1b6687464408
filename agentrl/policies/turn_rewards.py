"""Advantages of single turns, for records whose scorer gives rewards to turns besides the score.

The return of a turn is its own reward, the rewards of later turns, and at the end the score. It is compared with the
return of the same turn in the other records of the group; a record that ended before that turn counts with its score.

Invariants:
- without rewards every turn has the advantage of its record;
- advantages do not depend on the order of the members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentrl.policies.advantages import Estimator, advantage_of, baseline_of


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
