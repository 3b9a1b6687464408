"""The review queue: records without a verdict, the suspicious ones first, then some random ones.

Invariant: it looks only at the newest records that ended, and changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from agentrl.filters.mongo import Query
from agentrl.policies import review_queue
from agentrl.policies.review_queue import Facts
from agentrl.policies.status_tables import RecordStatus, ToolCallStatus
from agentrl.protocol.data_commands import ListReviews, Page
from agentrl.queries import pages
from agentrl.store import calls, lists
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain

LOOKED_AT = 1000
"""The newest records among which it chooses."""
ENOUGH = 8
"""An environment needs this many records before their usual length is known."""
_UNREVIEWED: Query = {
    "status": {"$in": [RecordStatus.SCORED, RecordStatus.UNSCORABLE, RecordStatus.EXCLUDED]},
    "review": None,
}
_FAILED = (ToolCallStatus.TOOL_ERROR, ToolCallStatus.TIMEOUT, ToolCallStatus.REFUSED, ToolCallStatus.LOST)


async def page(database: Database, args: ListReviews) -> Page:
    found = await lists.page(
        database, "Record", filter=args.filter, sort="-finished_at", limit=LOOKED_AT, also=_UNREVIEWED
    )
    rows = {str(row["id"]): row for row in found.rows}
    why = {id: review_queue.reasons(facts) for id, facts in (await _facts(database, rows.values())).items()}
    suspicious = sorted((id for id in rows if why[id]), key=lambda id: -len(why[id]))
    # A queue of suspicious records alone would show a wrong picture of the run.
    chosen = suspicious[: args.limit - max(1, args.limit // 4)]
    others = [id for id in rows if not why[id]]
    chosen += review_queue.at_random(others, args.limit - len(chosen))
    queue = [pages.shortened("Record", rows[id]) | {"why": why[id] or [review_queue.RANDOM]} for id in chosen]
    return Page(tuple(queue))


async def _facts(database: Database, rows: Any) -> dict[str, Facts]:
    rows = list(rows)
    tasks = await _baselines(database, sorted({row["task"] for row in rows}))
    made = await _calls(database, [row["id"] for row in rows])
    lengths: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        lengths[row["environment"]].append(row["generated_tokens"])
    usual = {name: median(each) if len(each) >= ENOUGH else 0.0 for name, each in lengths.items()}
    return {row["id"]: _of(row, tasks.get(row["task"]), made.get(row["id"], (0, 0)), usual) for row in rows}


def _of(row: Plain, task: Plain | None, made: tuple[int, int], usual: dict[str, float]) -> Facts:
    baseline = task["baseline"] if task is not None and task["round"] == row["round"] else None
    group = (
        {"group_mean": baseline["mean"], "group_std": baseline["std"], "group_members": baseline["valid"]}
        if baseline
        else {}
    )
    before = row.get("scores_before") or [None]
    return Facts(
        score=row.get("score"),
        score_before=before[-1],
        outcome=row["outcome"],
        malformed=bool(row.get("malformed")),
        generated_tokens=row["generated_tokens"],
        calls=made[0],
        failed_calls=made[1],
        usual_tokens=usual[row["environment"]],
        **group,
    )


async def _baselines(database: Database, tasks: Sequence[str]) -> dict[str, Plain]:
    closed = {"_id": {"$in": list(tasks)}, "baseline": {"$ne": None}}
    documents = await database.find("Task", closed, projection=["round", "baseline"])
    return {task["_id"]: task for task in documents}


async def _calls(database: Database, records: Sequence[str]) -> dict[str, tuple[int, int]]:
    """How many tool calls each record made, and how many failed."""
    counts: dict[str, tuple[int, int]] = {}
    for query in calls.of_records(records):
        stages: list[Plain] = [
            {"$match": {"$and": [query, {"tool_calls.0": {"$exists": True}}]}},
            {"$unwind": "$tool_calls"},
            {
                "$group": {
                    "_id": "$record",
                    "made": {"$sum": 1},
                    "failed": {"$sum": {"$cond": [{"$in": ["$tool_calls.status", list(_FAILED)]}, 1, 0]}},
                }
            },
        ]
        for one in await database.aggregate(CALLS, stages):
            counts[one["_id"]] = (int(one["made"]), int(one["failed"]))
    return counts
