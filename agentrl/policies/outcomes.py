"""Why a record ended, and what follows from that. This is the only place that classifies outcomes.

Invariants: every outcome has exactly one class; infrastructure failures never train and are in no baseline; an answer
that could not be judged is never given the score 0.
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
"""A tool call is made in its session, and once more in a fresh one if it failed there."""
AROUND_A_TOOL_CALL_S = 100.0
"""Added to the times of the calls: waiting for a turn, for a server to return, and for the fresh session."""
AROUND_A_DEADLINE_S = 60.0
"""Added to the deadline of a model call or an episode, which ends by itself: time for queues, a busy machine,
reporting."""


class OutcomeClass(enum.StrEnum):
    POLICY = "policy"
    LIMIT = "limit"
    INFRASTRUCTURE = "infrastructure"
    UNSCORED = "unscored"


class Outcome(enum.StrEnum):
    # The policy's own result.
    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    """It stopped without an answer in the required form."""
    MALFORMED_CALL = "malformed_call"
    REFUSED = "refused"
    """The policy declined. No shipped agent loop detects it; a run's own loop may."""
    TOOL_FAILURE = "tool_failure"
    """A crash or timeout that the tool declares to be the policy's fault."""
    # A limit set for the policy.
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_FULL = "context_full"
    PROMPT_TOO_LONG = "prompt_too_long"
    """The first prompt does not fit, so sampling again cannot help."""
    IMAGE_REFUSED = "image_refused"
    """An image of the task cannot be shown to the model, so sampling again cannot help."""
    REPETITION = "repetition"
    INVALID_CALL_LIMIT = "invalid_call_limit"
    TIME_LIMIT = "time_limit"
    """Its deadline passed after the model had generated tokens. Redrawing it would select short episodes."""
    # Not caused by the policy.
    ENGINE_FAILED = "engine_failed"
    ENGINE_RUBBISH = "engine_rubbish"
    """The engine's answer cannot be true: lengths differ, ids are outside the vocabulary, or log-probs are not
    numbers."""
    TOOL_SERVER_FAILED = "tool_server_failed"
    TOOL_TIMEOUT = "tool_timeout"
    STORE_FAILED = "store_failed"
    EPISODE_TIMEOUT = "episode_timeout"
    """Its deadline passed before the model generated a token, or the run does not count a deadline as a limit of the
    policy."""
    OTHER_MODEL_FAILED = "other_model_failed"
    """Another model that the episode needs, such as a simulated user, did not answer for a very long time."""
    LOOP_FAILED = "loop_failed"
    """The agent loop raised an error."""
    NOT_REPRODUCIBLE = "not_reproducible"
    """A fork whose trunk could not be repeated: a tool returned something else, or the loop called something else."""
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
            Outcome.IMAGE_REFUSED,
            Outcome.REPETITION,
            Outcome.INVALID_CALL_LIMIT,
            Outcome.TIME_LIMIT,
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
            Outcome.OTHER_MODEL_FAILED,
            Outcome.LOOP_FAILED,
            Outcome.NOT_REPRODUCIBLE,
            Outcome.OWNER_LOST,
        ),
        OutcomeClass.INFRASTRUCTURE,
    ),
}

LimitRule = Literal["cap", "mask", "keep"]
"""How a record that ran into a limit trains: with an advantage of at most 0, not at all, or like any other."""

Blame = Literal["policy", "infrastructure"]
"""The cause that a tool declares for its crashes and timeouts, or that the run declares for the deadlines of its
episodes."""

Fault = Literal["", "policy", "infrastructure"]
"""The cause of a failed tool call; empty if it did not fail."""

AnswerStatus = Literal["ok", "tool_error", "timeout", "cancelled", "lost"]
"""How a tool call ended in the toolbox."""


def class_of(outcome: str) -> OutcomeClass:
    try:
        return CLASS_OF[Outcome(outcome)]
    except ValueError:
        known = ", ".join(sorted(CLASS_OF))
        raise UnknownNameError(f"There is no outcome {outcome!r}.", hint=f"Outcomes are: {known}.") from None


def in_baseline(kind: OutcomeClass) -> bool:
    """Whether the score is part of the baseline of its group."""
    return kind in (OutcomeClass.POLICY, OutcomeClass.LIMIT)


def trains(kind: OutcomeClass, limits: LimitRule = "cap") -> bool:
    return kind is OutcomeClass.POLICY or (kind is OutcomeClass.LIMIT and limits != "mask")


def capped(kind: OutcomeClass, limits: LimitRule = "cap") -> bool:
    """Whether the advantage stays at or below 0."""
    return kind is OutcomeClass.LIMIT and limits == "cap"


def tool_fault(
    status: str,
    reason: str = "",
    *,
    timeout_means: Blame = "infrastructure",
    crash_means: Blame = "infrastructure",
) -> Fault:
    """The cause of how a tool call ended. A lost toolbox or sampler is no evidence about the call."""
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


def at_deadline(means: Blame, generated_tokens: int) -> Outcome:
    """The outcome of an episode whose deadline passed. Without tokens the policy did nothing that could be judged."""
    return Outcome.TIME_LIMIT if means == "policy" and generated_tokens else Outcome.EPISODE_TIMEOUT


def tool_call_within_s(limit_s: float) -> float:
    """The time after which a toolbox must have answered, if one call may take `limit_s`."""
    return CALLED_AT_MOST * limit_s + AROUND_A_TOOL_CALL_S


def longest_group_s(episode_s: float) -> float:
    """The longest time that a group can take, if every seat is redrawn."""
    return episode_s * (1 + MAX_REDRAWS)


def fault_on_fresh_session(first: tuple[str, str], again: tuple[str, str] | None, *, works_for_others: bool) -> Blame:
    """The cause of a failed call, after the same call in a fresh session; each is a status and a reason. `again` is
    None if no session could be opened. If the tool fails for all callers, an equal result proves nothing."""
    return "policy" if again == first and works_for_others else "infrastructure"


def may_redraw(redraws: int, *, breaker_open: bool = False, max_redraws: int = MAX_REDRAWS) -> bool:
    """Whether a seat whose attempt failed gets another. An attempt that met an open breaker does not count."""
    return breaker_open or redraws < max_redraws


def valid_share(counts: Mapping[OutcomeClass, int]) -> float | None:
    """The share of ended attempts that did not fail for infrastructure; None if no attempt ended."""
    ended = _ended(counts)
    return sum(counts.get(kind, 0) for kind in OutcomeClass if in_baseline(kind)) / ended if ended else None


def must_hold(counts: Mapping[OutcomeClass, int], *, threshold: float, least: int = 20) -> bool:
    """Whether so many attempts fail for infrastructure that the other attempts would be a biased selection."""
    share = valid_share(counts)
    return share is not None and _ended(counts) >= least and share < threshold


def _ended(counts: Mapping[OutcomeClass, int]) -> int:
    """Attempts that wait for a judge are not counted."""
    return sum(counts.get(kind, 0) for kind in OutcomeClass if kind is not OutcomeClass.UNSCORED)
