"""Closes groups in the store; `agentrl.policies.group_closing` decides what follows from the scores.

Invariants: a group closes by one conditional update that stores baseline and shares together, so a second closing
changes nothing; DBRecordData is derived from the shares and can be written again at any time (`settle`); a sampler
closes only groups whose seats are settled and that have enough valid members; the steward closes all others.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pymongo import UpdateMany, UpdateOne

from agentrl.policies import group_closing, outcomes
from agentrl.policies.advantages import Baseline
from agentrl.policies.group_closing import Closed, GroupRule, Member
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.status_tables import IN_FLIGHT, TASK, Actor, RecordStatus, TaskStatus, check
from agentrl.store import tasks
from agentrl.store.database import Database, Plain, Write
from agentrl.store.documents import TRAINS, Record, Share, Task, load
from agentrl.store.update_expressions import NOW, setting

Answer = Literal["ready", "requeued", "dead", "open", "gone"]
"""The result of closing. `open`: some seats are not settled. `gone`: the task is not admitted, or another process was
first."""

READ = ["task", "round", "seat", "attempt", "status", "free", "outcome_class", "score", "turns", "malformed"]
READ += ["requeued_by", "rescore", "generated_tokens", "turn_rewards"]


@dataclass(frozen=True, slots=True)
class Group:
    """An admitted Task and all attempts of its present round, by seat."""

    task: Task
    seats: tuple[tuple[Record, ...], ...]
    past_deadline: bool

    @property
    def settled(self) -> list[bool]:
        return [bool(attempts) and _settled(attempts) for attempts in self.seats]

    @property
    def latest(self) -> list[Record]:
        return [attempts[-1] for attempts in self.seats if attempts]

    @property
    def may_close(self) -> bool:
        """The group waits for a seat that no sampler has begun even after the deadline, because it is queued and not
        late. It also waits for a record that is being scored again."""
        waiting = any(record.status == RecordStatus.OPEN or _is_scored_again(record) for record in self.latest)
        return group_closing.may_close(self.settled, past_deadline=self.past_deadline and not waiting)


def redraws_left(attempts: Sequence[Record]) -> bool:
    """Whether a seat may be tried again after its last attempt, which failed, was excluded or cancelled."""
    if attempts[-1].requeued_by:
        return True
    if attempts[-1].status in (RecordStatus.EXCLUDED, RecordStatus.CANCELLED):
        return False
    paid = sum(not (record.free or record.requeued_by) for record in attempts)
    return outcomes.may_redraw(paid - 1, breaker_open=attempts[-1].free)


async def close(database: Database, task_id: str, rule: GroupRule, actor: Actor) -> Answer:
    """Close a group if it may be closed. Any number of callers may try."""
    return (await close_among(database, [task_id], rule, actor))[task_id]


async def close_among(database: Database, task_ids: Sequence[str], rule: GroupRule, actor: Actor) -> dict[str, Answer]:
    """The same for several groups."""
    answers: dict[str, Answer] = {task: "gone" for task in task_ids}
    if actor is not Actor.STEWARD:
        # The usual answer, which one index lookup gives.
        flying = {"task": {"$in": list(task_ids)}, "status": {"$in": list(IN_FLIGHT)}}
        for record in await database.find("Record", flying, projection={"_id": 0, "task": 1}):
            answers[record["task"]] = "open"
    left = [task for task, answer in answers.items() if answer == "gone"]
    for group in await read(database, left) if left else ():
        answers[group.task.id] = await close_group(database, group, rule, actor)
    return answers


async def close_group(database: Database, group: Group, rule: GroupRule, actor: Actor) -> Answer:
    if group.task.seating or group.task.repairs or not group.may_close:
        return "open"
    task = group.task
    scored = [record for record in group.latest if record.status == RecordStatus.SCORED]
    members = [record for record in scored if record.id not in task.excluded]
    rule = rule.of_group(task.closing)
    closed = closing_of(task, members, rule)
    if not closed.enough:
        if actor is not Actor.STEWARD:
            return "open"
        target = await tasks.next_round(database, task, actor, closed.why)
        if target is None:
            return "gone"
        return "dead" if target is TaskStatus.DEAD else "requeued"
    check(TASK, task.status, TaskStatus.READY, actor, tasks.story(task))
    fields = closed_fields(closed, len(members), rule)
    became = setting({**fields, "status": TaskStatus.READY}, closed_at=NOW)
    if not await database.update_one("Task", tasks.unchanged(task), became):
        return "gone"
    await _write_advantages(database, fields["shares"])
    if group.past_deadline:
        await _mark_late(database, [task])
    return "ready"


def closing_of(task: Task, members: Sequence[Record], rule: GroupRule) -> Closed:
    """What follows from the scores of these records."""
    return group_closing.close(list(map(member_of, members)), task.n, rule, trains=task.purpose in TRAINS)


async def closed_again(
    database: Database,
    task: Task,
    rule: GroupRule,
    *,
    without: Collection[str] = (),
    scores: Mapping[str, float] | None = None,
) -> tuple[dict[str, Any], bool]:
    """The fields of a closed Task without some of its records, or with other scores, and whether enough are left."""
    rule = rule.of_group(task.closing)
    known = {share.record: share.score for share in task.shares if share.score is not None} | dict(scores or {})
    members = sorted({share.record for share in task.shares} - set(without))
    documents = await database.find("Record", {"_id": {"$in": members}}, projection=READ)
    records = [load(Record, document) for document in documents]
    records = [msgspec.structs.replace(record, score=known.get(record.id, record.score)) for record in records]
    closed = closing_of(task, records, rule)
    return closed_fields(closed, len(documents), rule, known), closed.enough


def closed_fields(
    closed: Closed, members: int, rule: GroupRule, scores: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The fields of a Task whose group is closed. `scores` of records that were scored again."""
    new = scores or {}
    return {
        "baseline": None if closed.baseline is None else _plain_baseline(closed.baseline, rule),
        "signal": closed.signal,
        "members": members,
        "shares": [
            Share(record, share.advantage, share.capped, new.get(record), list(share.turns))
            for record, share in closed.shares.items()
        ],
        "reason": closed.why,
    }


async def note_change(database: Database, task: Task) -> bool:
    """Call this after an operator changed records of an admitted Task: a process that read them before then cannot
    close the group. Returns False if the group was closed meanwhile."""
    admitted = {"_id": task.id, "status": TaskStatus.ADMITTED, "round": task.round}
    return await database.update_one("Task", admitted, {"$inc": {"changes": 1}})


async def settle(database: Database, closed: Sequence[Task]) -> None:
    """Write the consequences of the shares (advantages, new scores, and which records are late), in case the process
    that closed the group ended before it did so."""
    shares = {share.record: share for task in closed for share in task.shares}
    documents = await database.find("DBRecordData", {"_id": {"$in": list(shares)}}, projection=["advantage", "capped"])
    stored = {data["_id"]: (data.get("advantage"), data.get("capped")) for data in documents}
    unwritten = [one for one in shares.values() if stored.get(one.record) != (one.advantage, one.capped)]
    await _write_advantages(database, unwritten)
    await _write_scores(database, [one for one in shares.values() if one.score is not None])
    await _mark_late(database, closed)


async def _write_scores(database: Database, shares: Sequence[Share]) -> None:
    before: Plain = {"$concatArrays": [{"$ifNull": ["$scores_before", []]}, ["$score"]]}
    writes: list[Write] = [
        UpdateOne(
            {"_id": share.record, "score": {"$ne": share.score}}, setting({"score": share.score}, scores_before=before)
        )
        for share in shares
    ]
    await database.write("Record", writes, ordered=False)


async def _write_advantages(database: Database, shares: Sequence[Share]) -> None:
    """Records of a group that scored alike have the same advantage, and each statement costs the server more than its
    documents do. A record may have been excluded after its share was read."""
    alike: dict[tuple[float | None, bool], list[str]] = defaultdict(list)
    for share in shares:
        alike[share.advantage, share.capped].append(share.record)
    writes: list[Write] = [
        UpdateMany(
            {"_id": {"$in": records}, "excluded": {"$ne": True}}, {"$set": {"advantage": advantage, "capped": capped}}
        )
        for (advantage, capped), records in alike.items()
    ]
    await database.write("DBRecordData", writes, ordered=False)


async def _mark_late(database: Database, closed: Sequence[Task]) -> None:
    rounds = {task.id: task.round for task in closed}
    under_way = {"task": {"$in": list(rounds)}, "status": {"$in": list(IN_FLIGHT)}}
    documents = await database.find("Record", under_way, projection=["task", "round"]) if rounds else []
    late = [record["_id"] for record in documents if record["round"] == rounds[record["task"]]]
    if late:
        await database.update_many(
            "Record", {"_id": {"$in": late}, "status": {"$in": list(IN_FLIGHT)}}, {"$set": {"late": True}}
        )


async def read(database: Database, task_ids: Sequence[str]) -> list[Group]:
    """The groups of these Tasks that are admitted, with the attempts of their present round."""
    return await _read(database, {"_id": {"$in": list(task_ids)}, "status": TaskStatus.ADMITTED})


async def admitted(database: Database) -> list[Group]:
    """All groups that are not closed yet."""
    return await _read(database, {"status": TaskStatus.ADMITTED})


async def _read(database: Database, filter: dict[str, object]) -> list[Group]:
    # A group without a deadline sorts before every time.
    past = {"$and": [{"$gt": ["$deadline_at", None]}, {"$lt": ["$deadline_at", NOW]}]}
    left_out = {"query": 0, "answer": 0, "extra": 0, "shares": 0}
    documents = await database.aggregate(
        "Task", [{"$match": filter}, {"$project": left_out}, {"$set": {"past_deadline": past}}]
    )
    found = [(load(Task, document), bool(document["past_deadline"])) for document in documents]
    wanted = {"task": {"$in": [task.id for task, _ in found]}}
    round_of = {task.id: task.round for task, _ in found}
    seats: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for document in await database.find("Record", wanted, sort=[("attempt", 1)], projection=READ) if found else ():
        if document["round"] == round_of[document["task"]]:
            seats[document["task"]][document["seat"]].append(load(Record, document))
    return [Group(task, tuple(tuple(seats[task.id][seat]) for seat in range(task.n)), late) for task, late in found]


def _is_scored_again(record: Record) -> bool:
    return record.status == RecordStatus.SCORED and record.rescore is not None and record.rescore.wanted


def _settled(attempts: Sequence[Record]) -> bool:
    if _is_scored_again(attempts[-1]):
        return False
    return group_closing.seat_settled(RecordStatus(attempts[-1].status), may_redraw=redraws_left(attempts))


def member_of(record: Record) -> Member:
    return Member(
        record.id,
        OutcomeClass(record.outcome_class),
        record.score,
        turns=record.turns,
        tokens=record.generated_tokens,
        malformed=record.malformed,
        rewards=tuple(record.turn_rewards),
    )


def _plain_baseline(baseline: Baseline, rule: GroupRule) -> dict[str, float]:
    plain = {"mean": baseline.mean, "std": baseline.std, "valid": baseline.valid}
    if rule.turn_spread:
        plain["turn_spread"] = rule.turn_spread
    if rule.overlong is not None:
        plain |= {f"overlong_{name}": value for name, value in dataclasses.asdict(rule.overlong).items()}
    return plain
