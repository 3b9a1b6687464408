"""Lists for people and exports: filtered, sorted, paged. The language is that of `agentrl.filters`.

Invariants: a page never repeats or skips a row, whatever is inserted or removed meanwhile, because it continues after a
place in the order and not after a count (only a row that itself moves, such as an open Record that begins, may be
skipped); token data is never part of a row, only its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentrl.errors import UnknownNameError, UsageError
from agentrl.filters import fields as known_fields
from agentrl.filters.expressions import And, Compare, Expression, In, Not, Or
from agentrl.filters.fields import Fields, is_column
from agentrl.filters.mongo import Query, to_mongo
from agentrl.filters.parser import parse
from agentrl.filters.sorting import SortKey, parse_sort, to_mongo_sort, values_of
from agentrl.filters.sorting import after as behind
from agentrl.filters.tool_names import with_servers
from agentrl.formatting.names import singular
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.policies.replay_verdicts import Verdict
from agentrl.policies.review_queue import ReviewVerdict
from agentrl.policies.status_tables import (
    CheckpointStatus,
    PublicationStatus,
    RecordStatus,
    ReplayStatus,
    StepStatus,
    TaskStatus,
    ToolCallStatus,
)
from agentrl.store import list_cursors, row_columns, tool_call_lists
from agentrl.store.database import Database, Plain

FIELDS: Mapping[str, Fields] = {
    "Task": known_fields.TASKS.among(status=TaskStatus),
    "Record": known_fields.RECORDS.among(
        status=RecordStatus, outcome=Outcome, outcome_class=OutcomeClass, review=ReviewVerdict
    ),
    "DispatchedSamplingTask": known_fields.CALLS,
    "ToolCall": known_fields.TOOL_CALLS.among(status=ToolCallStatus),
    "Step": known_fields.STEPS.among(status=StepStatus),
    "Checkpoint": known_fields.CHECKPOINTS.among(status=CheckpointStatus),
    "Publication": known_fields.PUBLICATIONS.among(status=PublicationStatus),
    "Replay": known_fields.REPLAYS.among(status=ReplayStatus, verdict=Verdict),
    "Owner": known_fields.OWNERS,
    "Service": known_fields.SERVICES,
}
NEWEST_FIRST: Mapping[str, str] = {
    # Tasks that were not admitted yet come last.
    "Task": "-admitted_at",
    # Records that no sampler works on yet come last.
    "Record": "-started_at",
    "ToolCall": "-called_at",
    "Step": "-leased_at",
    "Checkpoint": "-at",
    # Version numbers increase with time.
    "Publication": "-id",
    "Replay": "-created_at",
}
"""The default order of each list: newest first. Each order uses an index."""
MOST_ROWS = 1000
MOST_TASKS = 100_000
"""The most tasks that a condition on dataset rows may find, because their ids are sent to the database."""
_TASK = known_fields.Field("task", "text")
TOOL_CALLS = "ToolCall"
"""The list of tool calls, which have no collection."""
_AS_THEY_ARE = frozenset({bool, int, float, str, type(None)})
LEFT_OUT = {"prompt": 0, "output": 0, "log_probs": 0, "shares": 0, "manifest": 0, "fork.result": 0, "repairs": 0}


@dataclass(frozen=True, slots=True)
class Page:
    rows: list[Plain]
    after: str | None
    """Pass it to get the next page; None at the end."""


async def page(
    database: Database,
    kind: str,
    *,
    filter: str = "",
    sort: str = "",
    after: str | int | None = None,
    limit: int = 100,
    also: Query | None = None,
    among: Sequence[str] | None = None,
) -> Page:
    """One page, the newest first unless `sort` names another order. FilterError says where a query is wrong. `after` is
    the cursor of the page before, or the id of a row; the page then begins after the present place of that row. `also`
    is a further condition in the language of MongoDB; `among`: only tool calls with these ids."""
    fields = _fields(kind)
    keys = parse_sort(sort or NEWEST_FIRST.get(kind, ""), fields)
    limit = max(1, min(limit, MOST_ROWS))
    now = await database.now()
    expression = await _parsed(database, kind, filter, now)
    place = None if after is None else await _place(database, kind, keys, after)
    if kind == TOOL_CALLS:
        found = await tool_call_lists.rows(database, expression, keys, place, limit=limit + 1, now=now, among=among)
    else:
        query = {"$and": [also or {}, to_mongo(expression, now), {} if place is None else behind(keys, place)]}
        found = await database.find(kind, query, sort=to_mongo_sort(keys), limit=limit + 1, projection=LEFT_OUT)
    rows = [shown(document) for document in found[:limit]]
    return Page(rows, list_cursors.written(kind, keys, rows[-1]) if len(found) > limit else None)


async def count(database: Database, kind: str, filter: str, *, also: Query) -> int:
    """How many rows a filter finds."""
    now = await database.now()
    return await database.count(kind, {"$and": [also, to_mongo(await _parsed(database, kind, filter, now), now)]})


async def _parsed(database: Database, kind: str, filter: str, now: datetime) -> Expression:
    expression = parse(filter, _fields(kind))
    await row_columns.check(database, expression)
    if kind == "ToolCall":
        return with_servers(expression)
    return await _with_tasks(database, expression, now) if kind == "Record" else expression


async def _with_tasks(database: Database, expression: Expression, now: datetime) -> Expression:
    """Replace conditions on columns of the dataset row, which only tasks have, by the ids of the tasks that fulfil
    them."""
    match expression:
        case And(parts):
            return And(tuple([await _with_tasks(database, part, now) for part in parts]))
        case Or(parts):
            return Or(tuple([await _with_tasks(database, part, now) for part in parts]))
        case Not(part):
            return Not(await _with_tasks(database, part, now))
        case Compare(field) | In(field) if is_column(field):
            documents = await database.find("Task", to_mongo(expression, now), projection=["_id"], limit=MOST_TASKS + 1)
            if len(documents) > MOST_TASKS:
                raise UsageError(f"More than {MOST_TASKS} tasks fulfil {expression}.", hint="Ask for rarer values.")
            return In(_TASK, tuple(task["_id"] for task in documents))
    return expression


async def _place(database: Database, kind: str, keys: tuple[SortKey, ...], last: str | int) -> list[Any]:
    if isinstance(last, str) and list_cursors.is_place(last):
        return list_cursors.read(last, kind, keys)
    if kind == TOOL_CALLS:
        document = await tool_call_lists.one(database, str(last))
    else:
        document = await database.find_one(kind, {"_id": last}, projection=LEFT_OUT)
    if document is None:
        raise UnknownNameError(f"There is no {singular(kind)} {last} to go on from.", hint="Begin at the first page.")
    return values_of(keys, shown(document))


def _fields(kind: str) -> Fields:
    if kind not in FIELDS:
        raise UnknownNameError(f"There is no list of {kind!r}.", hint=f"Lists are: {', '.join(FIELDS)}.")
    return FIELDS[kind]


def shown(document: Mapping[str, Any]) -> Plain:
    """A document as a row: with an `id`, and times as they are stored."""
    return {
        "id" if name == "_id" else name: value if type(value) in _AS_THEY_ARE else _plain(value)
        for name, value in document.items()
    }


def _plain(value: Any) -> Any:
    """Times in milliseconds, numbers without the driver's own types, at any depth."""
    # Checks the exact type first, for speed: an export has hundreds of values for each record.
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is dict:
        return {name: item if type(item) in _AS_THEY_ARE else _plain(item) for name, item in value.items()}
    if kind is list:
        return [item if type(item) in _AS_THEY_ARE else _plain(item) for item in value]
    match value:
        case int():
            return int(value)
        case datetime():
            whole = value.microsecond // 1000 * 1000
            return value if value.microsecond == whole else value.replace(microsecond=whole)
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
    return value
