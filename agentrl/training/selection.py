"""What the trainer finds in the store when it looks for its next Step.

Invariants: nothing is changed by looking; ages are those to the version that the Step would start from, over all
versions that a record trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.policies import batches
from agentrl.policies.ages import VersionTree
from agentrl.policies.batches import Decision, ReadyGroup, ReadyRecord, Situation, UnderWay, Wanted
from agentrl.policies.outcomes import OutcomeClass
from agentrl.store import steps, tasks
from agentrl.store.database import Database
from agentrl.store.documents import DBRecordData
from agentrl.store.steps import Ready
from agentrl.training.knobs import Plan

RECENT_RECORDS = 200
JUDGED_FROM = 50
"""Fewer recent records say nothing."""
LEAST_VALID_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where the trainer stands."""

    tree: VersionTree
    version: int
    publishes: bool
    """Whether a version is published after the next Step."""
    epochs: Mapping[str, int]
    """How many epochs each environment has."""
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    decision: Decision
    ready: dict[str, Ready] = field(default_factory=dict)
    ages: tuple[int, ...] = ()
    """Of the records that go by the bound of the run."""


async def look(database: Database, place: Place, plan: Plan, hold: str) -> Look:
    found = await steps.ready(database)
    groups = [_group(one, place) for one in found]
    under_way = []
    if plan.freshness.waits:
        flying = await steps.under_way(database)
        under_way = [UnderWay(place.tree.age(one.version, place.version), one.environment) for one in flying]
    # Asked after the groups: one that became ready in between is found by the next look.
    enough = sum(group.signal for group in groups) >= plan.groups
    exhausted = not enough and await tasks.exhausted(database, place.epochs) and not await _newly_ready(database, found)
    situation = Situation(
        ready=groups,
        under_way=under_way,
        publishes=place.publishes,
        waited_s=place.waited_s,
        exhausted=exhausted,
        hold=hold,
    )
    decision = batches.decide(situation, Wanted(groups=plan.groups, max_refill=plan.groups), plan.freshness)
    usual = [group for group in groups if group.environment not in plan.freshness.of_environments]
    ages = tuple(record.age for group in usual for record in group.records)
    return Look(decision, {one.task.id: one for one in found}, ages)


def staleness(data: DBRecordData, place: Place) -> int:
    versions = data.versions or ([] if data.oldest_version is None else [data.oldest_version])
    return place.tree.staleness(versions, place.version)


async def hold_reason(database: Database) -> str:
    """Why no Step should be taken: when most episodes fail, those that are left are a selection and no sample."""
    recent = await database.find(
        "Record",
        {"finished_at": {"$type": "date"}},
        sort=[("finished_at", -1)],
        limit=RECENT_RECORDS,
        projection=["outcome_class"],
    )
    if len(recent) < JUDGED_FROM:
        return ""
    failed = sum(record.get("outcome_class") == OutcomeClass.INFRASTRUCTURE for record in recent)
    if 1 - failed / len(recent) >= LEAST_VALID_SHARE:
        return ""
    return f"{failed} of the last {len(recent)} records failed for infrastructure"


async def _newly_ready(database: Database, found: list[Ready]) -> bool:
    """Whether a group became ready after we looked: then the data has not come to its end."""
    return len(await steps.ready(database)) > len(found)


def _group(one: Ready, place: Place) -> ReadyGroup:
    records = tuple(ReadyRecord(data.id, staleness(data, place)) for data in one.records)
    return ReadyGroup(one.task.id, one.task.admitted_order, one.task.signal, records, one.task.environment)
