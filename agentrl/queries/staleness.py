"""The ages of records that are ready or under way, what another bound would exclude, and which records the bound
excluded.

Invariants: ages are relative to the newest version, and only of records that follow the bound of the run. Dropped
shares by quarters of the durations show whether long episodes are dropped more often; they come from the committed
Steps, and from the groups of the same time that were too old as a whole for any Step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import pairwise

from agentrl.policies.status_tables import RecordStatus, StepStatus, TaskStatus
from agentrl.policies.version_tree import VersionTree
from agentrl.protocol.data_commands import BoundPreview, DurationShare, StalenessReport
from agentrl.steward.settings import StewardSettings
from agentrl.store import lineages, publications, steps, tasks
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS

RECENT_STEPS = 200
MOST_STARVED = 20_000
"""The most records of groups that were too old as a whole; the newest ends count."""
PARTS = 4


async def report(database: Database, settings: StewardSettings) -> StalenessReport:
    lineage = await lineages.current(database)
    plan = {} if lineage is None else lineage.plan
    bound = int(plan.get("bound", settings.bound))
    counted_at = (await database.now()).timestamp()
    parents = await publications.parents(database)
    dropped = by_quarters(await _durations(database))
    if not parents:
        return StalenessReport(bound=bound, dropped=dropped, counted_at=counted_at)
    tree, newest = VersionTree(parents), max(parents)
    own = plan.get("bounds", {}).keys()
    groups = [group for group in await steps.ready(database) if group.task.environment not in own]
    ready = Counter(tree.staleness(data.trained_versions, newest) for group in groups for data in group.records)
    flying = await _under_way(database, besides=own)
    under_way = Counter(tree.staleness(versions, newest) for versions in flying if parents.keys() >= versions)
    return StalenessReport(
        bound=bound,
        version=newest,
        ready=dict(sorted(ready.items())),
        under_way=dict(sorted(under_way.items())),
        previews=previews(ready, under_way, bound),
        dropped=dropped,
        counted_at=counted_at,
    )


def previews(ready: Counter[int], under_way: Counter[int], bound: int) -> tuple[BoundPreview, ...]:
    """What each bound would exclude, from 0 to a bound that excludes nothing; the present bound is included."""
    most = max([bound + 1, *ready, *under_way])
    return tuple(
        BoundPreview(
            bound=other,
            voids_ready=sum(count for age, count in ready.items() if age > other),
            voids_under_way=sum(count for age, count in under_way.items() if age > other),
        )
        for other in range(most + 1)
    )


def by_quarters(records: Sequence[tuple[float, bool]]) -> tuple[DurationShare, ...]:
    """The dropped records by quarter of the durations, the shortest first. Each input is (duration, whether it was
    dropped)."""
    ordered = sorted(records)
    cuts = [len(ordered) * part // PARTS for part in range(PARTS + 1)]
    parts = [ordered[begin:end] for begin, end in pairwise(cuts) if end > begin]
    return tuple(
        DurationShare(
            from_s=round(part[0][0], 3),
            to_s=round(part[-1][0], 3),
            records=len(part),
            dropped=sum(was_dropped for _, was_dropped in part),
        )
        for part in parts
    )


async def _under_way(database: Database, *, besides: Collection[str]) -> list[set[int]]:
    """The versions of each record that has generated tokens, `besides` those of some environments."""
    flying = {
        "status": {"$in": [RecordStatus.RUNNING, RecordStatus.FINISHED, RecordStatus.UNSCORED]},
        "purpose": {"$in": list(TRAINS)},
        "versions.0": {"$exists": True},
        "environment": {"$nin": list(besides)},
    }
    documents = await database.find("Record", flying, projection=["versions"])
    return [set(record["versions"]) for record in documents]


async def _durations(database: Database) -> list[tuple[float, bool]]:
    """For all records that recent Steps could have trained: their duration, and whether they were left out as too
    old."""
    documents = await database.find(
        "Step",
        {"status": StepStatus.COMMITTED},
        sort=[("step", -1)],
        limit=RECENT_STEPS,
        projection=["tasks", "records", "leased_at"],
    )
    trained = {record for step in documents for record in step["records"]}
    tasks_of_steps = [task for step in documents for task in step["tasks"]]
    consumed = {"_id": {"$in": tasks_of_steps}, "status": TaskStatus.TRAINED}
    closed = await database.find("Task", consumed, projection=["shares"]) if tasks_of_steps else []
    members = [share["record"] for task in closed for share in task["shares"] if share["advantage"] is not None]
    members += await _starved(database, since=documents[-1]["leased_at"] if documents else None)
    records = await database.find("Record", {"_id": {"$in": members}}, projection=["duration_s"]) if members else []
    return [(float(record["duration_s"]), record["_id"] not in trained) for record in records]


async def _starved(database: Database, *, since: datetime | None) -> list[str]:
    """Records that would have trained, in groups that no Step took because all their records were too old."""
    ended = {"$type": "date"} if since is None else {"$gte": since}
    stale = {"finished_at": ended, "status": RecordStatus.SUPERSEDED, "reason": tasks.STALE}
    documents = await database.find("Record", stale, sort=[("finished_at", -1)], limit=MOST_STARVED, projection=["_id"])
    trains = {"_id": {"$in": [record["_id"] for record in documents]}, "advantage": {"$ne": None}}
    data = await database.find("DBRecordData", trains, projection=["_id"]) if documents else []
    return [one["_id"] for one in data]
