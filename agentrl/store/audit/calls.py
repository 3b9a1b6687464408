"""Turns, model calls, tool calls and tokens.

Invariants proven here: what ended by the policy's doing waits for nothing any more; a record generated as many tokens
as its calls have, each with a log-prob and a version; it trains no more than it generated.
"""

from __future__ import annotations

from agentrl.policies.status_tables import CallStatus, RecordStatus, ToolCallStatus
from agentrl.store.audit.problems import Problem, beside, found, the_one
from agentrl.store.database import Database, Plain

_ENDED = [RecordStatus.FINISHED, RecordStatus.SCORED]
_BYTES_EACH = 4


async def ended_and_still_waiting(database: Database) -> Problem | None:
    open_statuses = [ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING]
    for what, waiting in (
        ("model calls", {"status": CallStatus.SENT}),
        ("tool calls", {"tool_calls.status": {"$in": open_statuses}}),
    ):
        stages: list[Plain] = [
            # The indexes of what is open begin with the record, and a server uses them for a query that names it.
            {"$match": waiting | {"record": {"$gt": ""}}},
            {"$lookup": {"from": "Record", "localField": "record", "foreignField": "_id", "as": "of"}},
            {"$match": {"of.status": {"$in": _ENDED}}},
        ]
        problem = await found(database, "DispatchedSamplingTask", stages, f"{what} open in records that ended")
        if problem is not None:
            return problem
    return None


def _packed(field: str) -> Plain:
    """How many numbers stand behind the byte that names the format."""
    return {"$max": [0, {"$divide": [{"$subtract": [{"$binarySize": f"${field}"}, 1]}, _BYTES_EACH]}]}


async def calls_that_do_not_fit(database: Database) -> Problem | None:
    each = {"$sum": {"$map": {"input": "$versions", "in": {"$arrayElemAt": ["$$this", 1]}}}}
    stages: list[Plain] = [
        {"$match": {"status": {"$in": [CallStatus.DONE, CallStatus.PARTIAL]}}},
        {"$set": {"ids": _packed("output"), "values": _packed("log_probs"), "counted": each}},
        {"$match": {"$expr": {"$or": [{"$ne": ["$ids", "$values"]}, {"$ne": ["$ids", "$counted"]}]}}},
    ]
    return await found(
        database, "DispatchedSamplingTask", stages, "model calls whose tokens, log-probs and versions do not fit"
    )


async def tokens_that_do_not_add_up(database: Database) -> Problem | None:
    """Of records that are scored: what they tell against what their calls have."""
    stages: list[Plain] = [
        {"$match": {"status": {"$in": [CallStatus.DONE, CallStatus.PARTIAL]}}},
        {"$project": {"_id": 0, "record": 1, "generated": _packed("output")}},
        beside("Record", {"reported": "$generated_tokens"}, filter={"status": RecordStatus.SCORED}),
        beside("DBRecordData", {"trained": "$trained_tokens"}),
        {
            "$group": {
                "_id": "$record",
                "calls": {"$sum": {"$cond": [{"$isNumber": "$generated"}, 1, 0]}},
                "generated": {"$sum": "$generated"},
                **{name: the_one(name) for name in ("reported", "trained")},
            }
        },
        # Those whose calls were removed are left out.
        {"$match": {"calls": {"$gt": 0}, "reported": {"$ne": None}}},
        {
            "$match": {
                "$expr": {
                    "$or": [
                        {"$ne": ["$generated", "$reported"]},
                        {"$lt": ["$generated", {"$ifNull": ["$trained", 0]}]},
                    ]
                }
            }
        },
    ]
    return await found(database, "DispatchedSamplingTask", stages, "records with other tokens than they report")
