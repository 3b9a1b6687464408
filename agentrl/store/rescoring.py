"""Scores records again, in samplers, because a scorer is code of the user.

Invariants:
- An operator marks records; a sampler takes one at a time, scores its stored episode, and writes the score. Records of
  samplers that die are given back.
- The former score is kept; the parts are those of the new one. A group that is open waits for the new score; a closed
  one gets another baseline, by one conditional update from which the scores of its records follow.
- A record that a step leased meanwhile keeps its score, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agentrl.policies.group_closing import GroupRule
from agentrl.policies.status_tables import RECORD, Actor, RecordStatus, TaskStatus, check
from agentrl.store import groups, owners, tasks
from agentrl.store.chosen_records import Chosen, Refused
from agentrl.store.claims import Claim
from agentrl.store.database import Database, Plain
from agentrl.store.documents import TRAINS, Record, Rescore, Task, load, storable, to_bson
from agentrl.store.exclusions import CHANGEABLE
from agentrl.store.update_expressions import literally, setting

TRIES = 20
"""How often to try to write a baseline while other processes change the same group."""
_WANTED: Plain = {"rescore.wanted": True, "status": RecordStatus.SCORED}


def refusal(one: Chosen) -> Refused | None:
    record = one.record
    if one.trained is not None:
        return one.trained
    if record.purpose not in TRAINS:
        return Refused("they do not train", f"{record.id} does not train: its purpose is {record.purpose}.")
    if record.status != RecordStatus.SCORED:
        return Refused("they are not scored", f"{record.id} is {record.status}; only scored records are scored again.")
    return one.over(CHANGEABLE)


async def request(database: Database, records: Sequence[str], scorer: str, *, by: str) -> int:
    """Mark records of any tasks. Returns how many."""
    check(RECORD, RecordStatus.SCORED, RecordStatus.SCORED, Actor.OPERATOR)
    wanted = to_bson(Rescore(by=by, wanted=True, scorer=scorer))
    scored = {"_id": {"$in": list(records)}, "status": RecordStatus.SCORED}
    return await database.update_many("Record", scored, {"$set": {"rescore": wanted}})


async def of_operation(database: Database, by: str) -> list[Record]:
    """The records that an operation marked."""
    return [load(Record, one) for one in await database.find("Record", {"rescore.by": by})]


async def hold_open(database: Database, waiting: Sequence[Record]) -> None:
    """Prevents processes that read the groups before their records were marked from closing them."""
    for name in sorted({record.task for record in waiting}):
        await groups.note_change(database, await tasks.get(database, name))


async def free_dead(database: Database) -> int:
    """Give back the records that dead samplers took."""
    taken = await database.distinct("Record", "rescore.sampler", _WANTED)
    dead = sorted(await owners.dead_among(database, taken))
    theirs = _WANTED | {"rescore.sampler": {"$in": dead}}
    return await database.update_many("Record", theirs, {"$set": {"rescore.sampler": ""}}) if dead else 0


# ---- samplers ----


async def claim(database: Database, owner: str) -> Claim | None:
    free = _WANTED | {"rescore.sampler": ""}
    document = await database.find_one_and_update("Record", free, {"$set": {"rescore.sampler": owner}})
    if document is None:
        return None
    record = load(Record, document)
    return Claim(record, await tasks.get(database, record.task))


async def finish(
    database: Database,
    claimed: Record,
    owner: str,
    score: float,
    rule: GroupRule,
    *,
    parts: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Write a new score, its parts and what follows from it. Returns why it does not count; empty if it does."""
    noted = False
    said: Plain = {"score_parts": storable(dict(parts))}
    for _ in range(TRIES):
        task = await tasks.get(database, claimed.task)
        # Its share may already have the new score, if an earlier attempt was interrupted before it noted that.
        share = next((one for one in task.shares if one.record == claimed.id), None)
        done = share is not None and share.score == score
        if not (done or noted) and (why := _too_late(task, claimed)):
            return await give_up(database, claimed, owner, why)
        if share is None:
            if noted:
                return ""
            if not await _note(database, claimed, owner, said | {"score": score}):
                return "it is not scored any more"
            # Read again: a process that had read the record before it was marked may have closed its group.
            noted = True
        elif done or task.status != TaskStatus.READY or await _close_again(database, task, claimed.id, score, rule):
            await groups.settle(database, [await tasks.get(database, task.id)])
            await _note(database, claimed, owner, said)
            return ""
    return await give_up(database, claimed, owner, "its group changed too often meanwhile")


async def give_up(database: Database, claimed: Record, owner: str, why: str) -> str:
    """End the request; the record keeps its score. Returns why."""
    await _note(database, claimed, owner, {"rescore.error": why[:2000]})
    return why


def _too_late(task: Task, record: Record) -> str:
    if task.round == record.round and task.status in CHANGEABLE:
        return ""
    return f"its score stays: {tasks.story(task)}"


async def _close_again(database: Database, task: Task, record: str, score: float, rule: GroupRule) -> bool:
    """Returns False if the group changed since it was read."""
    fields, _ = await groups.closed_again(database, task, rule, scores={record: score})
    changed = literally({**fields, "changes": task.changes + 1})
    return await database.update_one("Task", tasks.unchanged(task), [{"$set": changed}])


async def _note(database: Database, claimed: Record, owner: str, fields: Plain) -> bool:
    """Mark the request as done, with these fields. With a new score, the former one is kept too."""
    mine = {"_id": claimed.id, **_WANTED, "rescore.sampler": owner}
    before: Plain = {}
    if "score" in fields and fields["score"] != claimed.score:
        before = {"scores_before": {"$concatArrays": [{"$ifNull": ["$scores_before", []]}, ["$score"]]}}
    return await database.update_one("Record", mine, setting({**fields, "rescore.wanted": False}, **before))
