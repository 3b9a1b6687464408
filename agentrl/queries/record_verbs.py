"""What operators can do with records: exclude, requeue, cancel, score again, review.

Each verb defines which records it takes, what would follow, and how the records of one task are changed; the rest is
common to all verbs (`agentrl.queries.record_changes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Generic, Literal, TypeVar

from agentrl.formatting.amounts import counted
from agentrl.formatting.sentences import few
from agentrl.policies.group_closing import REDRAWN, GroupRule
from agentrl.policies.status_tables import HOLDS_SEAT, IN_FLIGHT, RecordStatus, TaskStatus
from agentrl.protocol.data_changes import (
    CancelRecords,
    ChooseRecords,
    Done,
    ExcludeRecords,
    RequeueRecords,
    RescoreRecords,
    ReviewRecords,
)
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.steward.settings import StewardSettings
from agentrl.store import cancellations, exclusions, requeues, rescoring, reviews
from agentrl.store.chosen_records import Chosen, Refused
from agentrl.store.database import Database
from agentrl.store.documents import Record, Task

A = TypeVar("A", bound=ChooseRecords)
Standing = Literal["open", "done", "before"]
"""State of a record: to be changed, changed by this operation, or already as wanted before it."""


@dataclass
class Plan:
    """Which records of which tasks are changed, and why others are not."""

    tasks: dict[str, Task] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    """By task."""
    refused: dict[str, Refused] = field(default_factory=dict)
    """By record."""
    done: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))

    @property
    def all(self) -> list[Record]:
        return [record for records in self.records.values() for record in records]

    @property
    def in_groups(self) -> str:
        """`3 records of 2 groups`"""
        return f"{counted(self.count, 'records')} of {counted(len(self.records), 'groups')}"

    def add(self, one: Chosen) -> None:
        self.records.setdefault(one.record.task, []).append(one.record)
        if one.task is not None:
            self.tasks[one.record.task] = one.task


Act = Callable[[Database, Task | None, list[str], A, AskUnit, GroupRule], Awaitable[Counter[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[A]):
    done: str
    """Its participle, used to report how many records it changed."""
    mark: str
    """The field of a record that stores the id of the operation."""
    statuses: tuple[str, ...] = ()
    """Statuses of the records that a filter finds; empty means all."""
    tasks: tuple[str, ...] | None = None
    """Statuses of the tasks of these records; None means all."""
    kind: str
    """Records that it can change, in words: `scored record that could still train`."""
    were_before: str
    standing: Callable[[Chosen, A, str], Standing]
    refusal: Callable[[Chosen], Refused | None]
    effect: Callable[[Database, Plan, A, StewardSettings], Awaitable[Effect]]
    carry_out: Act[A]
    """For the records of one task, or for all of them."""
    at_once: bool = False
    """It changes all records together."""
    also: Mapping[str, str] = field(default_factory=dict)
    """Further results besides `done`, each with a sentence."""
    progress: Callable[[Database, str], Awaitable[Done]] | None = None
    """For a verb that other units finish: the progress of its operation."""

    @property
    def waits(self) -> bool:
        return self.progress is not None


# ---- exclude ----


def _exclusion_standing(one: Chosen, args: ExcludeRecords, by: str) -> Standing:
    if one.record.status != RecordStatus.EXCLUDED:
        return "open"
    if not by or one.record.excluded_by != by:
        return "before"
    return "open" if exclusions.is_unfinished(one, by) else "done"


async def _exclusion_effect(
    database: Database, planned: Plan, args: ExcludeRecords, settings: StewardSettings
) -> Effect:
    closed = [task for task in planned.tasks.values() if task.status == TaskStatus.READY]
    again = 0
    for task in closed:
        ids = [record.id for record in planned.records[task.id]]
        again += not await exclusions.leaves_enough(database, task, ids, settings.group_rule)
    loses = f"{counted(again, 'groups')} would have too few records: sampled again in the next round"
    return Effect(
        changes=(
            f"{planned.in_groups} will not train",
            "the baselines of these groups are computed again without them",
        ),
        loses=(loses,) if again else (),
    )


async def _exclude(
    database: Database, task: Task | None, ids: list[str], args: ExcludeRecords, operation: AskUnit, rule: GroupRule
) -> Counter[str]:
    assert task is not None
    enough = await exclusions.exclude(database, task, ids, args.note, by=operation.id, rule=rule)
    return Counter(excluded=len(ids), sampled_again=not enough)


# ---- requeue ----


def _requeue_standing(one: Chosen, args: RequeueRecords, by: str) -> Standing:
    if by and one.task is not None and one.task.requeued_by == by:
        return "done"
    if not by or one.record.requeued_by != by:
        return "open"
    return "open" if requeues.is_unfinished(one) else "done"


async def _requeue_effect(database: Database, planned: Plan, args: RequeueRecords, settings: StewardSettings) -> Effect:
    seats = sum(len(planned.records[task.id]) for task in planned.tasks.values() if requeues.is_seat(task))
    whole = [task for task in planned.tasks.values() if not requeues.is_seat(task)]
    changes, loses = [], []
    if seats:
        are = "seat of an open group is" if seats == 1 else "seats of open groups are"
        changes.append(f"{seats} {are} attempted again, which costs no re-draw")
    if whole:
        are = "task is" if len(whole) == 1 else "tasks are"
        attempts = counted(sum(task.n for task in whole), "new records")
        changes.append(f"{len(whole)} {are} sampled again as a whole, because the group is closed: {attempts}")
        given_up = 0
        for task in whole:
            held = {"task": task.id, "round": task.round, "status": {"$in": sorted(HOLDS_SEAT)}}
            given_up += await database.count("Record", held)
        if given_up:
            are = "is" if given_up == 1 else "are"
            loses.append(f"{counted(given_up, 'records')} of their present rounds {are} given up")
    return Effect(changes=tuple(changes), loses=tuple(loses))


async def _requeue(
    database: Database, task: Task | None, ids: list[str], args: RequeueRecords, operation: AskUnit, rule: GroupRule
) -> Counter[str]:
    assert task is not None
    attempts = await requeues.requeue(database, task, ids, args.note, by=operation.id)
    return Counter(requeued=len(ids), whole_tasks=not requeues.is_seat(task), attempts=attempts)


# ---- cancel ----


def _cancel_standing(one: Chosen, args: CancelRecords, by: str) -> Standing:
    if one.record.status != RecordStatus.CANCELLED:
        return "open"
    return "done" if by and one.record.cancelled_by == by else "before"


async def _cancel_effect(database: Database, planned: Plan, args: CancelRecords, settings: StewardSettings) -> Effect:
    begun = [record for record in planned.all if record.status != RecordStatus.OPEN]
    waiting = planned.count - len(begun)
    changes, loses = [], []
    if waiting:
        changes.append(f"{counted(waiting, 'waiting records')} will not be sampled")
    if begun:
        tokens = counted(sum(record.generated_tokens for record in begun), "generated tokens")
        stop = "episode stops" if len(begun) == 1 else "episodes stop"
        loses.append(f"{len(begun)} {stop}, and {tokens} are given up")
    changes.append(
        f"the seats of {counted(planned.count, 'records')} stay empty; a group closes without them,"
        " or is sampled again if too few are left"
    )
    return Effect(changes=tuple(changes), loses=tuple(loses))


async def _cancel(
    database: Database, task: Task | None, ids: list[str], args: CancelRecords, operation: AskUnit, rule: GroupRule
) -> Counter[str]:
    done = await cancellations.cancel(database, ids, args.note, by=operation.id)
    return Counter(cancelled=done, ended_before=len(ids) - done)


# ---- score again ----


def _rescore_standing(one: Chosen, args: RescoreRecords, by: str) -> Standing:
    return "done" if by and one.record.rescore is not None and one.record.rescore.by == by else "open"


async def _rescore_effect(database: Database, planned: Plan, args: RescoreRecords, settings: StewardSettings) -> Effect:
    scorers = [args.scorer] if args.scorer else sorted({task.scorer for task in planned.tasks.values()} - {""})
    are = "is" if planned.count == 1 else "are"
    return Effect(
        changes=(
            f"{planned.in_groups} {are} scored again by {', '.join(few(scorers)) or 'the scorer of its task'},"
            " in the samplers",
            "the baselines of these groups are computed again; the former scores are kept",
        ),
        notes=("a record that a step leases before that keeps its score",),
    )


async def _rescore(
    database: Database, task: Task | None, ids: list[str], args: RescoreRecords, operation: AskUnit, rule: GroupRule
) -> Counter[str]:
    return Counter(rescored=await rescoring.request(database, ids, args.scorer, by=operation.id))


async def _rescore_progress(database: Database, by: str) -> Done:
    records = await rescoring.of_operation(database, by)
    wanted = [record for record in records if record.rescore is not None and record.rescore.wanted]
    waiting = [one for one in wanted if one.status == RecordStatus.SCORED]
    if waiting:
        await rescoring.hold_open(database, waiting)
        done = len(records) - len(waiting)
        return Done(under_way=f"{done} of {counted(len(records), 'records')} scored again, by samplers")
    kept = [
        f"{record.id} keeps its score: {record.rescore.error}"
        for record in records
        if record.rescore and record.rescore.error
    ]
    gone = len(wanted)
    new = [
        record
        for record in records
        if record.rescore is not None and not record.rescore.wanted and not record.rescore.error
    ]
    changed = [(one.scores_before[-1], one.score) for one in new if one.scores_before and one.score is not None]
    changed = [(before, now) for before, now in changed if before != now]
    lines = [f"{counted(len(new), 'records')} scored again"]
    if changed:
        before, now = fmean(before for before, _ in changed), fmean(now for _, now in changed)
        lines.append(f"{counted(len(changed), 'scores')} changed: from {before:.4g} to {now:.4g} on average")
    if gone:
        lines.append(f"{counted(gone, 'records')} went on meanwhile")
    result: dict[str, Any] = {"rescored": len(new), "changed": len(changed), "refused": len(kept) + gone}
    return Done((*lines, *few(kept)), result)


# ---- review ----


def _review_standing(one: Chosen, args: ReviewRecords, by: str) -> Standing:
    return "done" if by and one.record.review is not None and one.record.review.by == by else "open"


async def _review_effect(database: Database, planned: Plan, args: ReviewRecords, settings: StewardSettings) -> Effect:
    given = [record.review for record in planned.all if record.review is not None and record.review.verdict]
    had = Counter(f"{review.verdict} by {review.who}" for review in given)
    get = "gets" if planned.count == 1 else "get"
    changes = (f"{counted(planned.count, 'records')} {get} the verdict {args.verdict}",)
    if args.verdict == "none":
        changes = (f"{counted(len(given), 'verdicts')} of {counted(planned.count, 'records')} are removed",)
    notes = [f"{counted(count, 'records')} had the verdict {verdict}" for verdict, count in had.most_common()]
    return Effect(changes=changes, notes=few(notes))


async def _review(
    database: Database, task: Task | None, ids: list[str], args: ReviewRecords, operation: AskUnit, rule: GroupRule
) -> Counter[str]:
    verdict = "" if args.verdict == "none" else str(args.verdict)
    done = await reviews.note(database, ids, verdict, args.note, who=operation.who, by=operation.id)
    return Counter(reviewed=done)


_SCORED = (RecordStatus.SCORED.value,)
VERBS: Mapping[str, Verb[Any]] = {
    "exclude_records": Verb(
        done="excluded",
        mark="excluded_by",
        statuses=_SCORED,
        tasks=exclusions.CHANGEABLE,
        kind="scored record that could still train",
        were_before="were excluded before",
        standing=_exclusion_standing,
        refusal=exclusions.refusal,
        effect=_exclusion_effect,
        carry_out=_exclude,
        also={"sampled_again": "groups with too few records left, which are sampled again: {}"},
    ),
    "requeue_records": Verb(
        done="requeued",
        mark="requeued_by",
        statuses=REDRAWN,
        tasks=requeues.OPEN,
        kind="record that failed, or was abandoned, excluded or cancelled, and whose task has not trained",
        were_before="were requeued before",
        standing=_requeue_standing,
        refusal=requeues.refusal,
        effect=_requeue_effect,
        carry_out=_requeue,
        also={"attempts": "new attempts: {}", "whole_tasks": "tasks that are sampled again as a whole: {}"},
    ),
    "cancel_records": Verb(
        done="cancelled",
        mark="cancelled_by",
        statuses=tuple(sorted(IN_FLIGHT)),
        kind="record that is open, running, finished or unscored",
        were_before="were cancelled before",
        standing=_cancel_standing,
        refusal=cancellations.refusal,
        effect=_cancel_effect,
        carry_out=_cancel,
        at_once=True,
        also={"ended_before": "records that ended before they could be cancelled: {}"},
    ),
    "rescore_records": Verb(
        done="rescored",
        mark="rescore.by",
        statuses=_SCORED,
        tasks=exclusions.CHANGEABLE,
        kind="scored record that could still train",
        were_before="were scored again before",
        standing=_rescore_standing,
        refusal=rescoring.refusal,
        effect=_rescore_effect,
        carry_out=_rescore,
        at_once=True,
        progress=_rescore_progress,
    ),
    "review_records": Verb(
        done="reviewed",
        mark="review.by",
        kind="record",
        were_before="had this verdict before",
        standing=_review_standing,
        refusal=lambda one: None,
        effect=_review_effect,
        carry_out=_review,
        at_once=True,
    ),
}
