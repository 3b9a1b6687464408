"""Outcomes of attempts as metrics of a Step: of the attempts that it trains, and of all that ended since the last Step.

Invariant: everything is computed from the documents and nothing is accumulated, so a restart loses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.review_queue import CUT_OFF
from agentrl.store import calls
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.store.documents import TRAINS

MOST_RECORDS = 2000
"""Only this many of the newest attempts are read, even if more ended since the last Step."""


class ToolShare(NamedTuple):
    calls: int
    infrastructure: int

    @property
    def share(self) -> float:
        return self.infrastructure / self.calls if self.calls else 0.0


async def of_trained(database: Database, records: Sequence[str]) -> dict[str, float]:
    """Metrics of the records of a Step."""
    if not records:
        return {}
    wanted = {"_id": {"$in": list(records)}}
    cut_off = await database.count("Record", {**wanted, "outcome": {"$in": [outcome.value for outcome in CUT_OFF]}})
    tools = await of_tools(database, records)
    made = sum(tool.calls for tool in tools.values())
    return {"truncation_share": cut_off / len(records), "tool_calls_per_record": made / len(records)}


async def since(database: Database, then: datetime | None) -> dict[str, float]:
    """Metrics of the attempts for training that ended since then: outcomes, and for each tool the share of
    infrastructure failures."""
    when = {"$type": "date"} if then is None else {"$gt": then}
    ended = {"finished_at": when, "purpose": {"$in": list(TRAINS)}}
    documents = await database.find(
        "Record", ended, sort=[("finished_at", -1)], limit=MOST_RECORDS, projection=["outcome", "outcome_class"]
    )
    if not documents:
        return {}
    outcomes = Counter(record["outcome"] for record in documents)
    failed = sum(record["outcome_class"] == OutcomeClass.INFRASTRUCTURE for record in documents)
    tools = await of_tools(database, [record["_id"] for record in documents])
    return {
        "attempts": float(len(documents)),
        "infrastructure_share": failed / len(documents),
        "cut_off_share": sum(outcomes[outcome.value] for outcome in CUT_OFF) / len(documents),
        **{f"ended/{name or 'unknown'}": float(count) for name, count in sorted(outcomes.items())},
        **{f"tools/{name}/calls": float(tool.calls) for name, tool in tools.items()},
        **{f"tools/{name}/infrastructure_share": tool.share for name, tool in tools.items()},
    }


async def of_tools(database: Database, records: Sequence[str]) -> dict[str, ToolShare]:
    """By `server/tool`. All tools that no server offers are counted together as `unknown`, because policies invent any
    number of names, and not every name is a valid field."""
    broken = {"$sum": {"$cond": [{"$eq": ["$tool_calls.error_class", "infrastructure"]}, 1, 0]}}
    offered = {"$cond": [{"$eq": ["$tool_calls.server", ""]}, "", "$tool_calls.tool"]}
    key = {"server": "$tool_calls.server", "tool": offered}
    made, failed = Counter[str](), Counter[str]()
    for some in calls.of_records(records):
        stages: list[Plain] = [
            {"$match": some | {"tool_calls.0": {"$exists": True}}},
            {"$unwind": "$tool_calls"},
            {"$group": {"_id": key, "calls": {"$sum": 1}, "broken": broken}},
        ]
        for one in await database.aggregate(CALLS, stages):
            name = _name(one["_id"]["server"], one["_id"]["tool"])
            made[name] += int(one["calls"])
            failed[name] += int(one["broken"])
    return {name: ToolShare(count, failed[name]) for name, count in sorted(made.items())}


def _name(server: str, tool: str) -> str:
    return f"{server}/{tool}".replace(".", "/") if server else "unknown"


async def metrics_of_steps(database: Database, count: int) -> list[dict[str, float]]:
    """Metrics of the last committed Steps, the oldest first."""
    documents = await database.find(
        "Step", {"status": "committed"}, sort=[("step", -1)], limit=count, projection=["metrics"]
    )
    return [one.get("metrics") or {} for one in reversed(documents)]


async def last_commit(database: Database) -> datetime | None:
    document = await database.find_one(
        "Step", {"status": "committed"}, sort=[("step", -1)], projection=["committed_at"]
    )
    return document["committed_at"] if document else None
