"""Finds the groups of the next step in the store.

Invariants: it only reads; ages are relative to the version that the step would start from, and cover all versions that
a record trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from agentrl.policies import batch_cut, outcomes
from agentrl.policies.admission_capacity import TRIED
from agentrl.policies.batch_cut import BatchTarget, Decision, ReadyGroup, ReadyRecord, Situation, UnderWay
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.version_tree import VersionTree
from agentrl.store import retraining, steps, tasks
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS, DBRecordData
from agentrl.store.steps import Ready
from agentrl.training.poison_trials import Suspicion
from agentrl.training.trainer_knobs import Plan

RECENT_RECORDS = 200
RECENT_S = 600.0
JUDGED_FROM = 50
"""Fewer recent records are too little evidence."""
MIN_VALID_SHARE = 0.5
WELL_SHARE = 0.75
"""If this share of the newest attempts is valid, the failure is over."""
MAX_ERROR_LENGTH = 160


@dataclass(frozen=True, slots=True)
class Place:
    """The trainer's state that a look depends on."""

    tree: VersionTree
    version: int
    publishes: bool
    """Whether a version is published after the next step."""
    epochs: Mapping[str, int]
    """The number of epochs of each environment."""
    waited_s: float = 0.0
    max_trained_count: int = 1


@dataclass(frozen=True, slots=True)
class Selection:
    decision: Decision
    ready: dict[str, Ready] = field(default_factory=dict)


async def look(
    database: Database,
    place: Place,
    plan: Plan,
    hold: str,
    suspicion: Suspicion,
    known: dict[str, DBRecordData] | None = None,
) -> Selection:
    """`known`: the structures that the last look read."""
    found = await steps.ready(database, known=known)
    ready = {one.task.id: one for one in found}
    groups = [_group(one, place) for one in found]
    under_way = []
    if plan.freshness.waits:
        flying = await steps.under_way(database)
        under_way = [UnderWay(place.tree.staleness(one.versions, place.version), one.environment) for one in flying]
    # Read after the groups, so that the next look finds a group that became ready in between.
    enough = sum(group.signal for group in groups) >= plan.groups
    exhausted = not enough and await _exhausted(database, place, plan) and not await _newly_ready(database, found)
    has_forks = any(data.intervened for one in found for data in one.records)
    trained, intervened = await steps.recently_trained(database) if has_forks else (0, 0)
    situation = Situation(
        ready=groups,
        under_way=under_way,
        publishes=place.publishes,
        waited_s=place.waited_s,
        exhausted=exhausted,
        hold=hold,
        trained=trained,
        trained_intervened=intervened,
    )
    decision = None if hold else suspicion.decide(ready, groups, plan.freshness)
    if decision is None:
        decision = batch_cut.decide(
            situation,
            BatchTarget(groups=plan.groups, max_refill=plan.groups, intervened_share=plan.intervened_share),
            plan.freshness,
        )
    return Selection(decision, ready)


class Validity(NamedTuple):
    """How many of the recent attempts for training are valid."""

    share: float | None
    """Share of the attempts that did not fail for infrastructure; None if too few ended."""
    hold: str = ""
    """Why no step should be taken."""


async def validity(database: Database) -> Validity:
    """When most episodes fail, the rest is a biased selection, so the trainer holds.

    Only recent attempts count, and they no longer count once the newest ones succeed again: during a hold a few are
    admitted to find that out. Attempts that failed on an open circuit breaker and attempts that train nothing do not
    count.
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
    if not outcomes.must_hold(counted, threshold=MIN_VALID_SHARE, least=JUDGED_FROM):
        return Validity(share)
    failed = [one for one in recent if one.get("outcome_class") == OutcomeClass.INFRASTRUCTURE]
    return Validity(
        share,
        f"{len(failed)} of the last {counted.total()} records failed for infrastructure{_mostly(failed)}; "
        "a few are tried every minute, and training continues once they succeed",
    )


def _mostly(failed: Sequence[Mapping[str, Any]]) -> str:
    """The most frequent error, because its log may be on another host."""
    errors = Counter(" ".join(str(one["error"]).split()) for one in failed if one.get("error"))
    if not errors:
        return ""
    ((error, _),) = errors.most_common(1)
    return f", most often: {error if len(error) <= MAX_ERROR_LENGTH else error[: MAX_ERROR_LENGTH - 3] + '...'}"


async def _exhausted(database: Database, place: Place, plan: Plan) -> bool:
    """Whether no more groups come: no new task, and none that will be trained again."""
    if not await tasks.exhausted(database, place.epochs):
        return False
    bounds = plan.freshness
    return not await retraining.candidates(
        database, most=place.max_trained_count, bound=lambda environment: bounds.of(environment).oldest
    )


async def _newly_ready(database: Database, found: list[Ready]) -> bool:
    """Whether a group became ready after the look. Then the data has not ended."""
    return await steps.count_ready(database) > len(found)


def _group(one: Ready, place: Place) -> ReadyGroup:
    tree, base = place.tree, place.version
    records = tuple(
        ReadyRecord(data.id, tree.staleness(data.trained_versions, base), data.intervened) for data in one.records
    )
    return ReadyGroup(one.task.id, one.task.admitted_order, one.task.signal, records, one.task.environment)
