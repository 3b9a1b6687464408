"""Finds a page of tool calls, in the order of a list.

Tool calls are stored inside of model calls, so a list of them is read from other documents than it shows. Indexes find
the documents, and the tool calls in them become rows.

Invariants: every document with a row of the page is read, because the conditions on documents follow from those on
rows; `-called_at`, `id` and `-latency_s` read no more documents than the page needs; every other order reads all that
the filter finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentrl.filters.expressions import And, Compare, Expression, In, Not, Or
from agentrl.filters.mongo import Query, to_mongo
from agentrl.filters.sorting import SortKey, after, to_mongo_sort
from agentrl.policies.status_tables import StepStatus, ToolCallStatus
from agentrl.store.call_writer import CALLS
from agentrl.store.calls import FAILED_TOOL_ROW, FAILED_TOOLS, WITH_TOOLS, tool_row_stages
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import within

RESULT_CHARS = 500
_INSIDE = frozenset(
    "server tool status error_class tried_again result session latency_s requested_at done_at".split()  # noqa: SIM905
)
"""The fields of a tool call that are stored inside of its document."""
_AROUND = frozenset({"record", "task", "turn", "owner", "called_at"})
"""The fields that belong to the document itself."""
_FAILED = frozenset({ToolCallStatus.TOOL_ERROR, ToolCallStatus.TIMEOUT, ToolCallStatus.LOST})
_CUT: Plain = {"$set": {"result": {"$substrCP": ["$result", 0, RESULT_CHARS + 1]}}}


async def rows(
    database: Database,
    expression: Expression,
    keys: Sequence[SortKey],
    place: Sequence[Any] | None,
    *,
    limit: int,
    now: datetime,
    among: Sequence[str] | None = None,
) -> list[Plain]:
    """The first rows after a place in the order. `among`: only the calls with these ids."""
    documents = _documents(expression, now)
    queries: list[Query] = [to_mongo(expression, now)]
    if among is not None:
        documents.queries.append({"_id": {"$in": sorted({document_of(id) for id in among})}})
        documents.exact = False
        queries.append({"_id": {"$in": list(among)}})
    if place is not None:
        queries.append(after(keys, place))
    outcomes = _outcomes(_names(expression) | {key.field.name for key in keys})
    names = [key.field.name for key in keys]
    if names in (["called_at", "id"], ["id"]) and len({key.descending for key in keys}) == 1:
        if place is not None:
            documents.queries.append(_behind(keys, place))
        return await _in_order_of_documents(database, documents, [*outcomes, _matching(queries)], keys, limit)
    if names == ["latency_s", "id"] and all(key.descending for key in keys):
        return await _slowest(database, documents, [*outcomes, _matching(queries)], limit)
    order = {"$sort": dict(to_mongo_sort(keys))}
    chosen = [*outcomes, _matching(queries)]
    stages = [_matching(documents.queries), *tool_row_stages(), *chosen, order, {"$limit": limit}, _CUT]
    return await database.aggregate(CALLS, stages)


async def one(database: Database, id: str) -> Plain | None:
    """The row of a tool call, with its whole stored result."""
    stages = [_matching([{"_id": document_of(id)}]), *tool_row_stages(), _matching([{"_id": id}])]
    return next(iter(await database.aggregate(CALLS, stages)), None)


def document_of(id: str) -> str:
    """The model call in which a tool call is stored."""
    return id.rpartition(".")[0]


async def _in_order_of_documents(
    database: Database, documents: _Documents, chosen: Sequence[Plain], keys: Sequence[SortKey], limit: int
) -> list[Plain]:
    """Rows in the order of their documents; within a document they are sorted by their ids."""
    direction = -1 if keys[-1].descending else 1
    order = {"$sort": {name: direction for name, _ in to_mongo_sort(keys)}}
    by_id = {"$set": {"tool_calls": {"$sortArray": {"input": "$tool_calls", "sortBy": {"id": direction}}}}}
    found: list[Plain] = []
    # The document at the place may have no row after it.
    for most in (limit + 1,) if documents.exact else (limit + 1, 30 * limit, None):
        first = [{"$limit": most}] if most else []
        stages = [
            _matching(documents.queries),
            order,
            *first,
            by_id,
            *tool_row_stages(),
            *chosen,
            {"$limit": limit},
        ]
        found = await database.aggregate(CALLS, [*stages, _CUT])
        if len(found) == limit:
            break
    return found


def _behind(keys: Sequence[SortKey], place: Sequence[Any]) -> Query:
    """Documents that have a row after the place, and the document of the last row."""
    down = keys[-1].descending
    same = {"_id": {"$lte" if down else "$gte": document_of(str(place[-1]))}}
    if keys[0].field.name == "id":
        return same
    at = place[0]
    return {"$or": [{"called_at": {"$lt" if down else "$gt": at}}, {"called_at": at, **same}]}


async def _slowest(database: Database, documents: _Documents, chosen: Sequence[Plain], limit: int) -> list[Plain]:
    """The slowest rows. Documents are read in the order of their slowest call, so no later document has a slower
    row."""
    first = [_matching(documents.queries), {"$sort": {"tool_calls.latency_s": -1, "_id": -1}}]
    order = {"$sort": {"latency_s": -1, "_id": -1}}
    slowest = {"$project": {"latency_s": {"$max": "$tool_calls.latency_s"}}}
    most = limit
    while True:
        stages = [*first, {"$limit": most}, *tool_row_stages(), *chosen, order, {"$limit": limit}, _CUT]
        found, last = await asyncio.gather(
            database.aggregate(CALLS, stages),
            database.aggregate(CALLS, [*first, {"$skip": most - 1}, {"$limit": 1}, slowest]),
        )
        if not last or (len(found) == limit and _slowness(found[-1]) >= _slowness(last[0])):
            return found
        most *= 8


def _slowness(row: Plain) -> tuple[float, str]:
    return row["latency_s"], row["_id"]


def _outcomes(names: Collection[str]) -> list[Plain]:
    """Stages that add the outcome of a call, for filters and orders that name it: whether a step that counts trained
    its record, and how its newest replay ended."""
    stages: list[Plain] = []
    if "trained" in names:
        counting: list[Plain] = [{"$match": {"status": StepStatus.COMMITTED}}, {"$project": {"records": 1}}]
        of_steps = {"from": "Step", "localField": "task", "foreignField": "tasks", "pipeline": counting, "as": "_steps"}
        in_one = {"$map": {"input": "$_steps", "as": "step", "in": {"$in": ["$record", "$$step.records"]}}}
        stages += [{"$lookup": of_steps}, {"$set": {"trained": {"$anyElementTrue": [in_one]}}}, {"$unset": "_steps"}]
    if "replay" in names:
        newest: list[Plain] = [{"$sort": {"created_at": -1, "_id": -1}}, {"$limit": 1}]
        of_call = {"from": "Replay", "localField": "_id", "foreignField": "call", "pipeline": newest, "as": "_replays"}
        last = {"$first": "$_replays"}
        ended = {
            "$cond": [{"$in": [{"$ifNull": ["$$last.verdict", ""]}, ["", None]]}, "$$last.status", "$$last.verdict"]
        }
        stages += [{"$lookup": of_call}, {"$set": {"replay": {"$let": {"vars": {"last": last}, "in": ended}}}}]
        stages.append({"$unset": "_replays"})
    return stages


def _matching(queries: Sequence[Query]) -> Plain:
    return {"$match": {"$and": [query for query in queries if query] or [{}]}}


# ---- conditions on documents ----


@dataclass(slots=True)
class _Documents:
    """Conditions that every document with a wanted row fulfils, as far as indexes can use them."""

    queries: list[Query]
    exact: bool = True
    """True if each of these documents has a wanted row."""


def _documents(expression: Expression, now: datetime) -> _Documents:
    found = _Documents([WITH_TOOLS])
    of_call: list[Query] = []
    for part in _parts(expression):
        found.queries += _following(part, now)
        if (query := _of_call(part, now)) is not None:
            of_call.append(query)
        elif _names(part) <= _AROUND:
            found.queries.append(to_mongo(part, now))
        else:
            found.exact = False
    if of_call:
        found.queries.append({"tool_calls": {"$elemMatch": {"$and": of_call}}})
    return found


def _of_call(part: Expression, now: datetime) -> Query | None:
    """The condition on a call inside of its document; None if the part is no such condition."""
    match part:
        case Compare(field, "=", bool(value)) if field.name == "failed":
            return FAILED_TOOL_ROW if value else {"$nor": [FAILED_TOOL_ROW]}
        case Compare(field, "=", value) if field.name == "id":
            return {"id": value}
        case _ if _names(part) <= _INSIDE:
            return to_mongo(part, now)
    return None


def _parts(expression: Expression) -> Iterator[Expression]:
    """The parts that must all be fulfilled."""
    if isinstance(expression, And):
        for part in expression.parts:
            yield from _parts(part)
    else:
        yield expression


def _names(expression: Expression) -> set[str]:
    match expression:
        case And(parts) | Or(parts):
            return {name for part in parts for name in _names(part)}
        case Not(part):
            return _names(part)
        case Compare(field) | In(field):
            return {field.name}


def _following(part: Expression, now: datetime) -> list[Query]:
    """Further conditions on the document that follow from a condition on the call."""
    match part:
        case Compare(field, "=", str(value)) if field.name == "record" and value:
            return [{"_id": within(value)}]
        case Compare(field, "=", str(value)) if field.name == "id":
            return [{"_id": document_of(value)}]
        case In(field, values) if field.name == "id":
            return [{"_id": {"$in": [document_of(str(value)) for value in values]}}]
        case Compare(field, ">" | ">=", _) if field.name == "requested_at":
            (condition,) = to_mongo(part, now).values()
            return [{"called_at": condition}]
        case _ if _is_of_failed(part):
            return [FAILED_TOOLS]
    return []


def _is_of_failed(part: Expression) -> bool:
    """Whether only failed calls fulfil it."""
    match part:
        case Compare(field, "=", value) if field.name == "failed":
            return value is True
        case Compare(field, "=", value) if field.name == "error_class":
            return bool(value)
        case Compare(field, "=", value) if field.name == "status":
            return value in _FAILED
        case In(field, values) if field.name == "status":
            return all(value in _FAILED for value in values)
    return False
