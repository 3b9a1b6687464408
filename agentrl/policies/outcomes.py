"""Why a Record ended, and what follows from that: the one place that classifies.

Invariants: every outcome has exactly one class; infrastructure never trains and is in no baseline; a judge that cannot
answer is never a score of 0. Every count on every screen comes from these classes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal

from agentrl.errors import UnknownNameError
from agentrl.policies.status_tables import ToolCallStatus

MAX_REDRAWS = 2
"""Redrawing until success would select short episodes."""
CALLED_AT_MOST = 2
"""How often a tool call is made: in its session, and in a fresh one if it failed there."""
AROUND_A_TOOL_CALL_S = 100.0
"""What comes to the times of the calls: waiting for a turn and for a server to return, and the fresh session."""

AROUND_A_DEADLINE_S = 60.0
"""What comes to the time of a model call or an episode, which ends itself: queues, a busy machine, the telling."""


class OutcomeClass(enum.StrEnum):
    POLICY = "policy"
    LIMIT = "limit"
    INFRASTRUCTURE = "infrastructure"
    UNSCORED = "unscored"


class Outcome(enum.StrEnum):
    # The policy's own result.
    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    """It stopped without an answer in the form that was asked for."""
    MALFORMED_CALL = "malformed_call"
    REFUSED = "refused"
    """The policy declined. No loop that is shipped can tell; one of a run's own may."""
    TOOL_FAILURE = "tool_failure"
    """A crash or timeout that the tool declares to be the policy's."""
    # A limit set for the policy.
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_FULL = "context_full"
    PROMPT_TOO_LONG = "prompt_too_long"
    """The very first prompt does not fit: sampling it again cannot help."""
    REPETITION = "repetition"
    INVALID_CALL_LIMIT = "invalid_call_limit"
    # Not the policy's doing.
    ENGINE_FAILED = "engine_failed"
    ENGINE_RUBBISH = "engine_rubbish"
    """The engine answered what cannot be true: lengths that differ, ids outside the vocabulary, log-probs that are no
    numbers."""
    TOOL_SERVER_FAILED = "tool_server_failed"
    TOOL_TIMEOUT = "tool_timeout"
    STORE_FAILED = "store_failed"
    EPISODE_TIMEOUT = "episode_timeout"
    """Its deadline passed: time measures the machines, not the policy."""
    LOOP_FAILED = "loop_failed"
    """The agent loop itself raised."""
    OWNER_LOST = "owner_lost"
    """Its sampler died or drained, and the loop cannot be resumed."""


CLASS_OF: Mapping[Outcome, OutcomeClass] = {
    **dict.fromkeys(
        (Outcome.ANSWERED, Outcome.NO_ANSWER, Outcome.MALFORMED_CALL, Outcome.REFUSED, Outcome.TOOL_FAILURE),
        OutcomeClass.POLICY,
    ),
    **dict.fromkeys(
        (
            Outcome.TURN_LIMIT,
            Outcome.TOKEN_LIMIT,
            Outcome.CONTEXT_FULL,
            Outcome.PROMPT_TOO_LONG,
            Outcome.REPETITION,
            Outcome.INVALID_CALL_LIMIT,
        ),
        OutcomeClass.LIMIT,
    ),
    **dict.fromkeys(
        (
            Outcome.ENGINE_FAILED,
            Outcome.ENGINE_RUBBISH,
            Outcome.TOOL_SERVER_FAILED,
            Outcome.TOOL_TIMEOUT,
            Outcome.STORE_FAILED,
            Outcome.EPISODE_TIMEOUT,
            Outcome.LOOP_FAILED,
            Outcome.OWNER_LOST,
        ),
        OutcomeClass.INFRASTRUCTURE,
    ),
}

LimitRule = Literal["cap", "mask", "keep"]
"""What a record that ran into a limit trains with: at most 0, not at all, or like any other."""

Blame = Literal["policy", "infrastructure"]
"""What a tool declares about its own crashes and timeouts."""

Fault = Literal["", "policy", "infrastructure"]
"""Whose doing a failed tool call was; empty if it did not fail."""

AnswerStatus = Literal["ok", "tool_error", "timeout", "cancelled", "lost"]
"""How a tool call ended that a toolbox took."""


def class_of(outcome: str) -> OutcomeClass:
    try:
        return CLASS_OF[Outcome(outcome)]
    except ValueError:
        known = ", ".join(sorted(CLASS_OF))
        raise UnknownNameError(f"There is no outcome {outcome!r}.", hint=f"Outcomes are: {known}.") from None


def in_baseline(kind: OutcomeClass) -> bool:
    """Whether the score counts for mean and spread of its group."""
    return kind in (OutcomeClass.POLICY, OutcomeClass.LIMIT)


def trains(kind: OutcomeClass, limits: LimitRule = "cap") -> bool:
    return kind is OutcomeClass.POLICY or (kind is OutcomeClass.LIMIT and limits != "mask")


def capped(kind: OutcomeClass, limits: LimitRule = "cap") -> bool:
    """Whether the advantage is kept at or below 0."""
    return kind is OutcomeClass.LIMIT and limits == "cap"


def tool_fault(
    status: str,
    reason: str = "",
    *,
    timeout_means: Blame = "infrastructure",
    crash_means: Blame = "infrastructure",
) -> Fault:
    """Whose doing it was that a tool call ended like this. A lost toolbox or sampler says nothing about the call."""
    fault: Fault = ""
    match ToolCallStatus(status):
        case ToolCallStatus.TOOL_ERROR:
            fault = "policy"
        case ToolCallStatus.REFUSED:
            fault = "infrastructure" if reason == "quota" else "policy"
        case ToolCallStatus.TIMEOUT:
            fault = timeout_means
        case ToolCallStatus.LOST if reason == "server":
            fault = crash_means
        case ToolCallStatus.LOST:
            fault = "infrastructure"
    return fault


def tool_call_within_s(limit_s: float) -> float:
    """In which time a toolbox has answered for certain, if one call may take `limit_s`."""
    return CALLED_AT_MOST * limit_s + AROUND_A_TOOL_CALL_S


def longest_group_s(episode_s: float) -> float:
    """How long a group may take whose every seat is redrawn."""
    return episode_s * (1 + MAX_REDRAWS)


def fault_on_fresh_session(first: tuple[str, str], again: tuple[str, str] | None, *, works_for_others: bool) -> Blame:
    """Whose doing it was that a call failed, after the same was asked in a fresh session: status and reason of both.
    `again` is None if there was no session to be had. Where the tool fails for everybody, alike proves nothing."""
    return "policy" if again == first and works_for_others else "infrastructure"


def may_redraw(redraws: int, *, breaker_open: bool = False, max_redraws: int = MAX_REDRAWS) -> bool:
    """Whether a seat whose attempt failed gets another. An attempt that met an open breaker costs none."""
    return breaker_open or redraws < max_redraws


def valid_share(counts: Mapping[OutcomeClass, int]) -> float | None:
    """The share of recent attempts that ended by the policy's doing; None if none ended."""
    ended = _ended(counts)
    return sum(counts.get(kind, 0) for kind in OutcomeClass if in_baseline(kind)) / ended if ended else None


def must_hold(counts: Mapping[OutcomeClass, int], *, threshold: float, least: int = 20) -> bool:
    """Whether so many attempts fail for other reasons that what is left would be a biased selection."""
    share = valid_share(counts)
    return share is not None and _ended(counts) >= least and share < threshold


def _ended(counts: Mapping[OutcomeClass, int]) -> int:
    """What waits for a judge has not been decided yet."""
    return sum(counts.get(kind, 0) for kind in OutcomeClass if kind is not OutcomeClass.UNSCORED)
