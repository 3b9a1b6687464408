"""Turns, model calls, tool calls and tokens.

Invariants checked here: a record that ended by a policy result or limit has no open calls; a record generated as many
tokens as its calls have, each with a log-prob and a version; it trains no more tokens than it generated.
"""

from __future__ import annotations

from typing import Any

from agentrl.policies.status_tables import CallStatus, RecordStatus, ReplayStatus, ToolCallStatus
from agentrl.store.audit.problems import Problem, beside, found, the_one
from agentrl.store.database import Database, Plain
from agentrl.store.replays import IN_HAND, MOST_ATTEMPTS

_JUDGED = [ReplayStatus.JUDGED, ReplayStatus.KEPT, ReplayStatus.EXCLUDED, ReplayStatus.FORKED]


async def replays_that_disagree(database: Database) -> Problem | None:
    odd: list[Plain] = [
        {"status": {"$in": _JUDGED}, "verdict": ""},
        {"status": {"$nin": _JUDGED}, "verdict": {"$ne": ""}},
        {"status": {"$in": IN_HAND}, "owner": ""},
        {"status": ReplayStatus.QUEUED, "$or": [{"owner": {"$ne": ""}}, {"sent.0": {"$exists": True}}]},
        {"attempt": {"$gt": MOST_ATTEMPTS}},
        {"$expr": {"$gt": [{"$size": "$runs"}, "$times"]}},
    ]
    return await found(database, "Replay", [{"$match": {"$or": odd}}], "replays whose fields contradict their status")


_ENDED = [RecordStatus.FINISHED, RecordStatus.SCORED]
_BYTES_EACH = 4


async def ended_and_still_waiting(database: Database) -> Problem | None:
    open_statuses = [ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING]
    for what, waiting in (
        ("model calls", {"status": CallStatus.SENT}),
        ("tool calls", {"tool_calls.status": {"$in": open_statuses}}),
    ):
        stages: list[Plain] = [
            # The indexes on open calls begin with the record, and a server uses them for a query that names it.
            {"$match": waiting | {"record": {"$gt": ""}}},
            {"$lookup": {"from": "Record", "localField": "record", "foreignField": "_id", "as": "of"}},
            {"$match": {"of.status": {"$in": _ENDED}}},
        ]
        problem = await found(database, "DispatchedSamplingTask", stages, f"{what} open in records that ended")
        if problem is not None:
            return problem
    return None


def _packed(field: str) -> Plain:
    """The number of packed numbers, which follow the byte that names the format."""
    return {"$max": [0, {"$divide": [{"$subtract": [{"$binarySize": f"${field}"}, 1]}, _BYTES_EACH]}]}


_WITH_TOKENS: Plain = {"$match": {"status": {"$in": [CallStatus.DONE, CallStatus.PARTIAL]}}}
_COUNTED: Plain = {"$sum": {"$map": {"input": "$versions", "in": {"$arrayElemAt": ["$$this", 1]}}}}
"""The tokens of all versions."""


async def tokens_may_be_wrong(database: Database) -> bool:
    """False if the two checks below cannot find anything. It compares sizes in bytes, which is cheaper than unpacking
    numbers."""
    output, log_probs = {"$binarySize": "$output"}, {"$binarySize": "$log_probs"}
    of_versions: Plain = {"$add": [1, {"$multiply": [_BYTES_EACH, _COUNTED]}]}
    odd: Plain = {"$or": [{"$ne": [output, log_probs]}, {"$ne": [output, of_versions]}]}
    stages: list[Plain] = [
        _WITH_TOKENS,
        {"$project": {"_id": 0, "id": "$record", "odd": odd, "bytes": {"$subtract": [output, 1]}}},
        *_of_records(reported={"$multiply": [_BYTES_EACH, "$generated_tokens"]}),
        {
            "$group": {
                "_id": "$id",
                "odd": {"$max": "$odd"},
                "bytes": {"$sum": "$bytes"},
                **{name: the_one(name) for name in ("reported", "trained")},
            }
        },
        {
            "$match": {
                "$or": [
                    {"odd": True},
                    {"odd": False, "reported": {"$ne": None}, "$expr": {"$ne": ["$bytes", "$reported"]}},
                    {"odd": False, "$expr": {"$lt": ["$bytes", {"$multiply": [_BYTES_EACH, "$trained"]}]}},
                ]
            }
        },
        {"$limit": 1},
    ]
    return bool(await database.aggregate("DispatchedSamplingTask", stages))


def _of_records(*, reported: Any) -> tuple[Plain, Plain]:
    """Stages that add the numbers that the records report."""
    scored = {"status": RecordStatus.SCORED}
    return beside("Record", {"reported": reported}, filter=scored), beside(
        "DBRecordData", {"trained": "$trained_tokens"}
    )


async def calls_that_do_not_fit(database: Database) -> Problem | None:
    stages: list[Plain] = [
        _WITH_TOKENS,
        {"$set": {"ids": _packed("output"), "values": _packed("log_probs"), "counted": _COUNTED}},
        {"$match": {"$expr": {"$or": [{"$ne": ["$ids", "$values"]}, {"$ne": ["$ids", "$counted"]}]}}},
    ]
    return await found(
        database, "DispatchedSamplingTask", stages, "model calls whose tokens, log-probs and versions do not fit"
    )


async def tokens_that_do_not_add_up(database: Database) -> Problem | None:
    """Scored records whose number of tokens differs from that of their calls."""
    stages: list[Plain] = [
        _WITH_TOKENS,
        {"$project": {"_id": 0, "id": "$record", "generated": _packed("output")}},
        *_of_records(reported="$generated_tokens"),
        {
            "$group": {
                "_id": "$id",
                "calls": {"$sum": {"$cond": [{"$isNumber": "$generated"}, 1, 0]}},
                "generated": {"$sum": "$generated"},
                **{name: the_one(name) for name in ("reported", "trained")},
            }
        },
        # Records whose calls were removed are left out.
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
