"""Decides whether a fork repairs its base or branches off, and which tool calls rebuild the sessions of its trunk.

A fork goes on from a place in a recorded trajectory, the base. What comes before that place is the trunk.

Invariants:
- A trunk trains at most once: only a repair trains it, and then its base never does.
- A base that trained, or whose failure was not the infrastructure's, is never repaired.
- What a person wrote never repairs, and neither does a success that was chosen among failures.
- A fork of a held-out task never trains.
- A group of forks that could not be admitted or could not close is never made.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.errors import RefusedError
from agentrl.policies import group_closing
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.replay_verdicts import RAN, EarlierCall, ToolEffect, Verdict, effect_of, in_order
from agentrl.policies.status_tables import RecordStatus, TaskStatus


class ForkKind(enum.StrEnum):
    REPAIR = "repair"
    """It takes the seat of its base, which is excluded; trunk and continuation train once."""
    BRANCH = "branch"
    """It is a task of its own; the trunk is context and does not train in it."""


NOT_ENDED = frozenset({RecordStatus.OPEN, RecordStatus.RUNNING})
"""Records that have not ended, so nothing can be forked from them."""
REPAIRABLE = (RecordStatus.FAILED, RecordStatus.ABANDONED, RecordStatus.SCORED)
TRAINS = ("train", "branch")
SEVERAL = 2
"""A group of fewer records has nothing to compare them with."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkCase:
    """What the decision depends on."""

    status: RecordStatus
    """The status of the base."""
    purpose: str
    outcome_class: str = ""
    fault: str = ""
    """Whose fault the replay shows; empty without a replay."""
    verdict: str = ""
    """The verdict of the replay."""
    task_status: TaskStatus
    same_round: bool = True
    """The task has not gone on to another round."""
    step: str = ""
    """The step that has the base, even if that step was rolled back since."""
    edited: bool = False
    seat_taken_by: str = ""
    """A later attempt at the seat that has ended."""
    too_old: bool = False
    """The trunk has tokens past the bound."""
    times: int = 0
    """How often it shall be sampled; 0 leaves it to the rules."""
    n: int = 8
    """The records of a usual group."""
    min_valid: int | None = None
    """The valid records that a group needs, as in `GroupRule`."""
    largest: int = 0
    """The records of the largest group that can always be admitted; 0: any."""


@dataclass(frozen=True, slots=True)
class ForkDecision:
    kind: ForkKind
    purpose: str
    times: int
    why: str
    """Why it does not repair; empty if it does."""


def decide(case: ForkCase) -> ForkDecision:
    """Raises RefusedError if no group of so many records could train."""
    if case.purpose not in TRAINS:
        times = case.times or 1
        return ForkDecision(ForkKind.BRANCH, "probe", times, f"its purpose is {case.purpose}, which never trains")
    why = _why_not_repaired(case)
    if not why:
        return ForkDecision(ForkKind.REPAIR, case.purpose, 1, "")
    times = case.times or case.n
    if times < SEVERAL:
        return ForkDecision(ForkKind.BRANCH, "probe", times, why)
    _refuse_impossible(times, case)
    return ForkDecision(ForkKind.BRANCH, "branch", times, why)


def _refuse_impossible(times: int, case: ForkCase) -> None:
    needed = group_closing.required_valid(times, case.min_valid)
    if times < needed:
        raise RefusedError(
            f"A group of {times} forks could never train, because a group needs {needed} valid records (min_valid).",
            hint=f"--times {needed} or more, or --times 1 for a probe, which does not train",
        )
    if 0 < case.largest < times:
        raise RefusedError(
            f"A group of {times} forks does not fit beside a batch: with the present bound and max_in_flight a group "
            f"has at most {case.largest} records.",
            hint=f"--times {case.largest} or fewer",
        )


def _why_not_repaired(case: ForkCase) -> str:
    if case.edited:
        return "what a person wrote never repairs"
    if case.times >= SEVERAL:
        return "several continuations are a group of their own"
    if case.step:
        return f"it stands in step {case.step}"
    if case.status not in REPAIRABLE:
        return f"it is {case.status}"
    if case.outcome_class != OutcomeClass.INFRASTRUCTURE and case.fault != "infrastructure":
        return "its failure was not the infrastructure's" if case.outcome_class or case.fault else "it did not fail"
    if case.verdict not in ("", Verdict.FIXED):
        return f"the verdict of its replay is {case.verdict}, and only fixed calls repair"
    if case.task_status != TaskStatus.ADMITTED or not case.same_round:
        return f"its group is over: its task is {case.task_status}"
    if case.seat_taken_by:
        return f"its seat was filled by {case.seat_taken_by}"
    return "its tokens are older than the bound" if case.too_old else ""


def rebuilding_trunk(
    calls: Sequence[EarlierCall], effects: Mapping[str, Mapping[str, ToolEffect]]
) -> list[EarlierCall]:
    """The tool calls of a trunk that run again to rebuild its sessions, in their order. `effects`: by server, the
    effects of the tools of servers that keep state in a session; calls of other servers do not run again."""
    return [call for call in _that_ran(calls, effects) if effect_of(effects[call.server], call.tool) == "session"]


def lost_with_session(
    calls: Sequence[EarlierCall], effects: Mapping[str, Mapping[str, ToolEffect]], replaced: str = ""
) -> list[EarlierCall]:
    """The calls of a trunk that would have to run again to rebuild its sessions, and may not, because they act outside.
    `replaced`: the call whose result the operator gives."""
    return [
        call
        for call in _that_ran(calls, effects)
        if effect_of(effects[call.server], call.tool) == "outside" and call.id != replaced
    ]


def _that_ran(calls: Sequence[EarlierCall], effects: Mapping[str, Mapping[str, ToolEffect]]) -> list[EarlierCall]:
    return [call for call in in_order(calls) if call.status in RAN and call.server in effects]


def limited(groups: Sequence[tuple[int, int]], *, share: float, recent: int, recent_intervened: int) -> list[int]:
    """How many forks of each group may train in a step. `groups`: for each group of the step, in order, the number of
    records and how many of them are forks. `recent`: the number of records that the steps before trained;
    `recent_intervened`: how many of them were forks.

    One fork may train if few records trained before; otherwise a small batch could never train any.
    """
    usual = recent - recent_intervened + sum(size - forks for size, forks in groups)
    # Forks that do not train are no records of the step, so they make no room for others.
    most = usual * share / (1 - share) if share < 1 else float("inf")
    room = max(1.0 if share > 0 else 0.0, most + _ROUNDING) - recent_intervened
    allowed = []
    for _, forks in groups:
        allowed.append(int(min(forks, max(0.0, room))))
        room -= allowed[-1]
    return allowed
