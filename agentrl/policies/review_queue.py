"""Which records a person should look at, and why.

Invariants:
- Every reason is a rule that can be read in one line, with the numbers that made it apply.
- The random choice is the same each time as long as the records are the same.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.policies.outcomes import Outcome

DEVIATIONS = 2.0
"""A score this many standard deviations from the mean of its group counts as far."""
MEMBERS = 4
"""Scores of smaller groups are not tested for their distance from the others."""
FAILED_CALLS = 3
TIMES_AS_LONG = 4.0
CUT_OFF = (Outcome.TURN_LIMIT, Outcome.TOKEN_LIMIT, Outcome.CONTEXT_FULL, Outcome.TIME_LIMIT)
RANDOM = "a random choice"


class ReviewVerdict(enum.StrEnum):
    """What a person thinks of a record."""

    GOOD = "good"
    BAD = "bad"
    GOLDEN = "golden"
    """Good enough to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules know of a record."""

    score: float | None = None
    score_before: float | None = None
    """The score before the record was scored again."""
    outcome: str = ""
    malformed: bool = False
    generated_tokens: int = 0
    calls: int = 0
    failed_calls: int = 0
    group_mean: float | None = None
    group_std: float = 0.0
    group_members: int = 0
    usual_tokens: float = 0.0
    """The median of its environment; 0 if it is not known."""


def reasons(facts: Facts) -> list[str]:
    """Why a record is suspicious; empty if no rule applies."""
    found = []
    score, mean = facts.score, facts.group_mean
    if score is not None and mean is not None and facts.group_std > 0 and facts.group_members >= MEMBERS:
        far = abs(score - mean) / facts.group_std
        if far >= DEVIATIONS:
            found.append(f"its score {score:.4g} is {far:.1f} deviations from the mean {mean:.4g} of its group")
    if score is not None and score > 0:
        if facts.outcome == Outcome.NO_ANSWER:
            found.append(f"it has the score {score:.4g} without an answer")
        if facts.malformed:
            found.append(f"it has the score {score:.4g} in spite of malformed calls")
    if facts.outcome in CUT_OFF:
        found.append(f"it was cut off ({facts.outcome})")
    if facts.failed_calls >= FAILED_CALLS and 2 * facts.failed_calls >= facts.calls:
        found.append(f"{facts.failed_calls} of its {facts.calls} tool calls failed")
    if facts.usual_tokens and facts.generated_tokens >= TIMES_AS_LONG * facts.usual_tokens:
        times = facts.generated_tokens / facts.usual_tokens
        found.append(
            f"it is {times:.0f} times as long as usual: {facts.generated_tokens} tokens, and {facts.usual_tokens:.0f}"
            " are the median of its environment"
        )
    if score is not None and facts.score_before is not None and score != facts.score_before:
        found.append(f"its score changed from {facts.score_before:.4g} to {score:.4g} when it was scored again")
    return found


def at_random(records: Sequence[str], most: int) -> list[str]:
    """A random choice that is the same each time."""
    return sorted(records, key=lambda id: zlib.crc32(id.encode()))[:most]
