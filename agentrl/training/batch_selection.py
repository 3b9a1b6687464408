"""What the trainer finds in the store when it looks for its next Step.

Invariants: nothing is changed by looking; ages are those to the version that the Step would start from, over all
versions that a record trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from agentrl.policies import batch_cut, outcomes
from agentrl.policies.admission import TRIED
from agentrl.policies.batch_cut import Decision, ReadyGroup, ReadyRecord, Situation, UnderWay, Wanted
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.version_tree import VersionTree
from agentrl.store import retraining, steps, tasks
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS, DBRecordData
from agentrl.store.steps import Ready
from agentrl.training.poisoned_groups import Suspicion
from agentrl.training.trainer_knobs import Plan

RECENT_RECORDS = 200
RECENT_S = 600.0
JUDGED_FROM = 50
"""Fewer recent records say nothing."""
LEAST_VALID_SHARE = 0.5
WELL_SHARE = 0.75
"""So many of the newest that were valid tell that what failed is over."""
LONGEST_ERROR = 160


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
    max_trained_count: int = 1


@dataclass(frozen=True, slots=True)
class Look:
    decision: Decision
    ready: dict[str, Ready] = field(default_factory=dict)


async def look(
    database: Database,
    place: Place,
    plan: Plan,
    hold: str,
    suspicion: Suspicion,
    known: dict[str, DBRecordData] | None = None,
) -> Look:
    """`known`: what was read by the last look."""
    found = await steps.ready(database, known=known)
    ready = {one.task.id: one for one in found}
    groups = [_group(one, place) for one in found]
    under_way = []
    if plan.freshness.waits:
        flying = await steps.under_way(database)
        under_way = [UnderWay(place.tree.staleness(one.versions, place.version), one.environment) for one in flying]
    # Asked after the groups: one that became ready in between is found by the next look.
    enough = sum(group.signal for group in groups) >= plan.groups
    exhausted = not enough and await _exhausted(database, place, plan) and not await _newly_ready(database, found)
    situation = Situation(
        ready=groups,
        under_way=under_way,
        publishes=place.publishes,
        waited_s=place.waited_s,
        exhausted=exhausted,
        hold=hold,
    )
    decision = None if hold else suspicion.decide(ready, groups, plan.freshness)
    if decision is None:
        decision = batch_cut.decide(situation, Wanted(groups=plan.groups, max_refill=plan.groups), plan.freshness)
    return Look(decision, ready)


class Validity(NamedTuple):
    """Of the attempts for training that ended lately."""

    share: float | None
    """Those that did not fail for infrastructure; None if too few ended."""
    hold: str = ""
    """Why no Step should be taken, in words."""


async def validity(database: Database) -> Validity:
    """When most episodes fail, those that are left are a selection and no sample.

    What is older than a while counts no more, nor what failed before the newest succeed again: those are tried for
    that, while nothing else is admitted. What failed on an open breaker says nothing that the breaker does not say, and
    what trains nothing is no part of the selection.
    """
    ended = await database.find(
        "Record",
        {"finished_at": {"$type": "date"}, "purpose": {"$in": list(TRAINS)}},
        sort=[("finished_at", -1)],
        limit=RECENT_RECORDS,
        projection=["outcome_class", "finished_at", "free", "error"],
    )
    long_ago = await database.now() - timedelta(seconds=RECENT_S)
    recent = [one for one in ended if one["finished_at"] > long_ago and not one.get("free")]
    counted = Counter(OutcomeClass(one["outcome_class"]) for one in recent if one.get("outcome_class"))
    if counted.total() < JUDGED_FROM:
        return Validity(None)
    share = outcomes.valid_share(counted)
    newest = [OutcomeClass(one["outcome_class"]) for one in recent if one.get("outcome_class")][:TRIED]
    if (outcomes.valid_share(Counter(newest)) or 0.0) >= WELL_SHARE:
        return Validity(share)
    if not outcomes.must_hold(counted, threshold=LEAST_VALID_SHARE, least=JUDGED_FROM):
        return Validity(share)
    failed = [one for one in recent if one.get("outcome_class") == OutcomeClass.INFRASTRUCTURE]
    return Validity(
        share,
        f"{len(failed)} of the last {counted.total()} records failed for infrastructure{_mostly(failed)}; "
        "a few are tried every minute, and it goes on once those succeed",
    )


def _mostly(failed: Sequence[Mapping[str, Any]]) -> str:
    """What most of those that say why have in common: the log that has it may be on another host."""
    told = Counter(" ".join(str(one["error"]).split()) for one in failed if one.get("error"))
    if not told:
        return ""
    ((error, _),) = told.most_common(1)
    return f", most often: {error if len(error) <= LONGEST_ERROR else error[: LONGEST_ERROR - 3] + '...'}"


async def _exhausted(database: Database, place: Place, plan: Plan) -> bool:
    """Whether nothing comes any more: no new Task, and none that was trained and will be once more."""
    if not await tasks.exhausted(database, place.epochs):
        return False
    bounds = plan.freshness
    return not await retraining.candidates(
        database, most=place.max_trained_count, bound=lambda environment: bounds.of(environment).oldest
    )


async def _newly_ready(database: Database, found: list[Ready]) -> bool:
    """Whether a group became ready after we looked: then the data has not come to its end."""
    return await steps.count_ready(database) > len(found)


def _group(one: Ready, place: Place) -> ReadyGroup:
    tree, base = place.tree, place.version
    records = tuple(ReadyRecord(data.id, tree.staleness(data.trained_versions, base)) for data in one.records)
    return ReadyGroup(one.task.id, one.task.admitted_order, one.task.signal, records, one.task.environment)
