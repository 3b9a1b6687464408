"""Records that a sampler holds: claimed, ended, scored, given back.

Invariants: a claim takes the open Records that were admitted first (except those that opened a moment ago), and never
the same one twice; every later write names the Record (which includes its attempt) and the owner, and returns False if
the claim is lost: then the episode is dropped silently; a Record is `finished` only after its output is stored, and
`scored` only after its structure is stored.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from pymongo import UpdateOne

from agentrl.policies import outcomes
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.policies.status_tables import RECORD, Actor, RecordStatus, check
from agentrl.store.database import Database, Plain, Write
from agentrl.store.documents import DBRecordData, Record, Task, load, storable, to_bson
from agentrl.store.update_expressions import NOW, seconds_since, setting

S = RecordStatus
MOST_KNOWN_TASKS = 64
BEGINNING_EVERY_S = 0.5


class Claim(NamedTuple):
    record: Record
    task: Task
    fresh: bool = False
    """True if no sampler had it before, so nothing of it is stored."""


class LastClaims:
    """State that consecutive claims share. Seats of one task are claimed in a row, so its Task is kept: what an episode
    reads of it does not change within a round. And the search for open Records begins where the last claim found one.

    A server keeps removed index entries for minutes and must skip them in every search from the beginning. So a search
    starts from the very beginning only once in a while; a Record that opens there, such as a new attempt, waits at most
    that long.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: OrderedDict[str, Task] = OrderedDict()
        self._front: int | None = None
        self._looked_at = float("-inf")

    def begin(self) -> int | None:
        """Where the next claim may begin; None for the very beginning."""
        now = self._clock()
        if self._front is None or now >= self._looked_at + BEGINNING_EVERY_S:
            self._looked_at = now
            return None
        return self._front

    def found(self, order: int | None) -> None:
        self._front = order

    async def task_of(self, record: Record) -> Task:
        known = self._known.get(record.task)
        if known is None or known.round != record.round:
            document = await self._database.find_one("Task", {"_id": record.task}, projection={"shares": 0})
            assert document is not None, f"{record.id} has no task"
            known = self._known[record.task] = load(Task, document)
            if len(self._known) > MOST_KNOWN_TASKS:
                self._known.popitem(last=False)
        return known


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an episode."""

    turns: int = 0
    generated_tokens: int = 0
    oldest_version: int | None = None
    newest_version: int | None = None
    versions: list[int] = []


class Ending(Reached, frozen=True, kw_only=True):
    """The end of an episode by a result or a limit of the policy."""

    outcome: Outcome
    malformed: bool = False
    error: str = ""
    context: dict[str, int] = {}


async def claim_several(
    database: Database,
    owner: str,
    most: int,
    *,
    environments: Sequence[str] | None = None,
    resumable: bool = False,
    last: LastClaims | None = None,
) -> list[Claim]:
    """Claim at most this many of the open Records that were admitted first, evaluations before all others. Returns an
    empty list only if none is open.

    An owner must wait for the end of one claim before the next, because a claim recognises its Records by their owner.
    Only Records of these `environments` are claimed; others may have broken tools. `resumable`: another sampler can
    continue the loop. A Record that was handed over already has turns. `last`: state for callers that claim often.
    """
    check(RECORD, S.OPEN, S.RUNNING, Actor.SAMPLER)
    wanted: Plain = {"status": S.OPEN}
    if environments is not None:
        wanted["environment"] = {"$in": list(environments)}
    mine = {"status": S.RUNNING, "owner": owner, "resumable": resumable}
    last = last or LastClaims(database)
    while found := await _first_open(database, wanted, most, last.begin()):
        fresh, first = next(groupby(found, _is_fresh))
        alike = list(first)
        # Read before they are taken, so that nothing can fail between the claim and the episode.
        tasks = {one["_id"]: await last.task_of(load(Record, one)) for one in alike}
        taken = await _take(alike, mine, database)
        # Whether or not this claim got them, none of them is open any more.
        last.found(alike[-1]["order"])
        if taken:
            return [Claim(load(Record, one), tasks[one["_id"]], fresh) for one in taken]
    last.found(None)
    return []


async def _first_open(database: Database, wanted: Plain, most: int, begin: int | None) -> list[Plain]:
    """The first open Records from `begin` on; if there are none, from the very beginning."""
    places = [wanted] if begin is None else [wanted | {"order": {"$gte": begin}}, wanted]
    for place in places:
        if documents := await database.find("Record", place, sort=[("order", 1), ("seat", 1)], limit=most):
            return documents
    return []


async def _take(found: Sequence[Plain], mine: Plain, database: Database) -> list[Plain]:
    """Takes these Records, and returns those that now belong to this owner, in their new state."""
    named: Plain = {"_id": {"$in": [one["_id"] for one in found]}}
    fresh = _is_fresh(found[0])
    # Another sampler may have begun one meanwhile and given it back, and then something of it is stored.
    untouched = {"status": S.OPEN} | ({"started_at": None} if fresh else {})
    update = setting(mine, started_at={"$ifNull": ["$started_at", NOW]})
    taken = await database.update_many("Record", named | untouched, update)
    if taken == len(found) and fresh:
        return [one | mine for one in found]
    held = named | {"status": S.RUNNING, "owner": mine["owner"]}
    return await database.find("Record", held, sort=[("order", 1), ("seat", 1)])


def _is_fresh(record: Plain) -> bool:
    return record.get("started_at") is None


async def mark_resumable(database: Database, record: str, owner: str, resumable: bool) -> bool:
    """Store whether the loop is resumable, once the loop is known."""
    return await database.update_one("Record", _held(record, owner), {"$set": {"resumable": resumable}})


async def finish(database: Database, record: str, owner: str, ending: Ending) -> bool:
    """End a Record by a result or a limit of the policy. Its turns and calls must be stored before."""
    fields = _finished(ending) | {"status": S.FINISHED}
    check(RECORD, S.RUNNING, S.FINISHED, Actor.SAMPLER, record)
    return await database.update_one("Record", _held(record, owner), _ended(fields))


class Scored(NamedTuple):
    """A policy's result together with its score."""

    record: str
    ending: Ending
    score: float
    data: DBRecordData
    turn_rewards: Sequence[float] = ()
    parts: Mapping[str, float] = MappingProxyType({})


async def finish_scored(database: Database, owner: str, ended: Sequence[Scored]) -> set[str]:
    """`finish` and `score` for several Records at once, for scorers that answer immediately, so that no reader would
    see the status in between. Returns the Records that are now scored by this owner, including those that were
    already."""
    check(RECORD, S.RUNNING, S.FINISHED, Actor.SAMPLER)
    check(RECORD, S.FINISHED, S.SCORED, Actor.SCORER)
    mine = {"_id": {"$in": [one.record for one in ended]}, "owner": owner}
    running = await database.find("Record", mine | {"status": S.RUNNING}, projection=["_id"])
    held = {found["_id"] for found in running}
    at_hand = [one for one in ended if one.record in held]
    await database.insert_new("DBRecordData", [to_bson(one.data) for one in at_hand])
    writes: list[Write] = [
        UpdateOne(
            _held(one.record, owner), _ended(_finished(one.ending) | _scored(one.score, one.turn_rewards, one.parts))
        )
        for one in at_hand
    ]
    done = await database.write("Record", writes, ordered=False)
    if done.matched == len(ended):
        return held
    scored = await database.find("Record", mine | {"status": S.SCORED}, projection=["_id"])
    return {found["_id"] for found in scored}


async def fail(
    database: Database,
    record: str,
    owner: str,
    outcome: Outcome,
    error: str = "",
    *,
    free: bool = False,
    reached: Reached | None = None,
) -> bool:
    """End a Record for reasons that are not the policy's. `free`: it met an open circuit breaker, which costs no
    re-draw. `reached`: its progress in the store, if known; otherwise the last stored progress stays."""
    kind = outcomes.class_of(outcome)
    if kind is not OutcomeClass.INFRASTRUCTURE:
        raise ValueError(f"{outcome} is {kind.value}: such a record finishes, it does not fail")
    check(RECORD, S.RUNNING, S.FAILED, Actor.SAMPLER, record)
    fields = {"status": S.FAILED, "outcome": outcome, "outcome_class": kind, "error": error[:2000], "free": free}
    fields |= _said(reached) if reached else {}
    return await database.update_one("Record", _held(record, owner), _ended(fields))


async def hand_back(database: Database, record: str, owner: str) -> bool:
    """For a drain: another sampler continues this attempt from its last stored turn."""
    check(RECORD, S.RUNNING, S.OPEN, Actor.SAMPLER, record)
    update = {"$set": {"status": S.OPEN, "owner": ""}}
    return await database.update_one("Record", _held(record, owner), update)


async def abandon(database: Database, record: str, owner: str) -> bool:
    """For the end of a drain: abandon an episode that cannot be resumed."""
    check(RECORD, S.RUNNING, S.ABANDONED, Actor.SAMPLER, record)
    return await database.update_one("Record", _held(record, owner), _ended(abandoned_fields()))


def progress(record: str, owner: str, reached: Reached) -> UpdateOne:
    """Store the progress after a turn. The staleness of records under way is computed from it, and it proves that the
    claim still holds. `reached` includes what former owners stored. It may be repeated."""
    return UpdateOne(_held(record, owner), {"$set": _said(reached)})


# ---- scores ----


async def score(
    database: Database,
    record: str,
    owner: str,
    score: float,
    data: DBRecordData,
    *,
    turn_rewards: Sequence[float] = (),
    parts: Mapping[str, float] = MappingProxyType({}),
) -> bool:
    """Store its structure, then its score. Next, the caller must close the group (`groups.close`)."""
    if data.id != record:
        raise ValueError(f"the structure of {data.id} is not that of {record}")
    for source in (S.FINISHED, S.UNSCORED):
        check(RECORD, source, S.SCORED, Actor.SCORER, record)
    held = _held(record, owner, S.FINISHED, S.UNSCORED)
    if await database.find_one("Record", held, projection=["_id"]) is None:
        return False
    await database.insert_new("DBRecordData", [to_bson(data)])
    return await database.update_one("Record", held, {"$set": _scored(score, turn_rewards, parts)})


def _scored(score: float, turn_rewards: Sequence[float], parts: Mapping[str, float]) -> Plain:
    rewards: Plain = {"turn_rewards": list(turn_rewards)} if any(turn_rewards) else {}
    if parts:
        rewards["score_parts"] = storable(dict(parts))
    return {"status": S.SCORED, "score": score, **rewards}


async def leave_unscored(database: Database, record: str, owner: str, why: str) -> bool:
    """Note that the scorer cannot answer; it is called again later. This never gives a score of 0."""
    check(RECORD, S.FINISHED, S.UNSCORED, Actor.SCORER, record)
    update = {"$set": {"status": S.UNSCORED, "error": why[:2000]}}
    return await database.update_one("Record", _held(record, owner, S.FINISHED), update)


async def give_up_scoring(database: Database, record: str, owner: str, why: str) -> bool:
    """Give up a record whose judge did not answer before the deadline; its seat stays empty."""
    check(RECORD, S.UNSCORED, S.UNSCORABLE, Actor.SCORER, record)
    fields = {"status": S.UNSCORABLE, "outcome_class": OutcomeClass.UNSCORED, "error": why[:2000]}
    return await database.update_one("Record", _held(record, owner, S.UNSCORED), {"$set": fields})


async def claim_for_scoring(database: Database, owner: str) -> Claim | None:
    """Claim a Record that ended and whose owner is gone, to score it."""
    ended = {"status": {"$in": [S.FINISHED, S.UNSCORED]}, "owner": ""}
    document = await database.find_one_and_update("Record", ended, {"$set": {"owner": owner}}, sort=[("order", 1)])
    if document is None:
        return None
    record = load(Record, document)
    return Claim(record, await LastClaims(database).task_of(record))


async def held_by(database: Database, owner: str) -> list[Record]:
    """The Records that an owner holds, according to the store."""
    mine = {"owner": owner, "status": {"$in": [S.RUNNING, S.FINISHED, S.UNSCORED]}}
    return [load(Record, found) for found in await database.find("Record", mine)]


# ---- inside ----


def abandoned_fields() -> dict[str, Any]:
    return {
        "status": S.ABANDONED,
        "outcome": Outcome.OWNER_LOST,
        "outcome_class": outcomes.class_of(Outcome.OWNER_LOST),
    }


def _held(record: str, owner: str, *statuses: RecordStatus) -> Plain:
    among = statuses or (S.RUNNING,)
    return {"_id": record, "owner": owner, "status": {"$in": list(among)}}


def _finished(ending: Ending) -> dict[str, Any]:
    """The fields of a Record that an ending sets."""
    kind = outcomes.class_of(ending.outcome)
    if not outcomes.in_baseline(kind):
        raise ValueError(f"{ending.outcome} is {kind.value}: such a record fails, it does not finish")
    return _said(ending) | {"outcome_class": kind}


def _said(reached: Reached) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(reached).items() if value is not None}


def _ended(fields: dict[str, Any]) -> list[dict[str, Any]]:
    return setting(fields, finished_at=NOW, duration_s=seconds_since("started_at"))
