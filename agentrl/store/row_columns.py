"""Refuses conditions on columns of the dataset row that no task has.

A misspelt column (`row.dificulty`) is not an error for MongoDB: `=` would find nothing, and `!=` everything. The tasks
in the database decide which columns exist, and which types of values they have.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from agentrl.errors import UsageError
from agentrl.filters.expressions import And, Compare, Expression, In, Not, Or, Value
from agentrl.filters.fields import ROW, TASKS, Field, is_column
from agentrl.filters.mongo import Query
from agentrl.store.database import Database

_SHOWN = 20
_TYPES = {bool: "bool", int: "number", float: "number", str: "string"}
_WORDS = {"bool": "a flag", "number": "a number", "string": "a text"}
"""MongoDB's names of types, and the words for messages."""


async def check(database: Database, expression: Expression) -> None:
    """Raises UsageError for a column that no task has, or whose values all have another type than the query's."""
    for condition in _on_columns(expression):
        field = condition.field
        task = await database.find_one("Task", {field.stored: {"$exists": True}}, projection={field.stored: 1})
        if task is None:
            if await database.find_one("Task", {}, projection={"_id": 1}) is not None:
                raise await _no_such_column(database, field)
        elif (wanted := _types(condition)) and not await _holds(database, field, wanted):
            words = " or ".join(_WORDS[each] for each in sorted(wanted))
            quoted = "Write a number without quotes." if wanted == {"string"} else "Quote a number that is a text."
            raise UsageError(
                f"No task has {words} in the column {_column(field)!r}.",
                hint=f"{quoted} A value of this column is {_value(task, field)!r:.100}.",
            )


def _on_columns(expression: Expression) -> Iterator[Compare | In]:
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _on_columns(part)
        case Not(part):
            yield from _on_columns(part)
        case Compare(field) | In(field) if is_column(field):
            yield expression


def _types(condition: Compare | In) -> set[str]:
    """The types of the values of a condition; empty if the condition also finds tasks without the column."""
    values: tuple[Value, ...] = condition.values if isinstance(condition, In) else (condition.value,)
    return set() if None in values else {_TYPES[type(value)] for value in values if type(value) in _TYPES}


async def _holds(database: Database, field: Field, types: set[str]) -> bool:
    query: Query = {field.stored: {"$type": sorted(types)}}
    return await database.find_one("Task", query, projection={"_id": 1}) is not None


async def _no_such_column(database: Database, field: Field) -> UsageError:
    pairs = {"$objectToArray": {"$ifNull": ["$extra", {}]}}
    stages: list[Query] = [{"$project": {"pair": pairs}}, {"$unwind": "$pair"}, {"$group": {"_id": "$pair.k"}}]
    columns = sorted(each["_id"] for each in await database.aggregate("Task", stages))
    column = _column(field)
    close = difflib.get_close_matches(column, columns, n=1, cutoff=0.6)
    meant = f" Did you mean {ROW}.{close[0]}?" if close else ""
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    known = f"Columns are: {', '.join(columns[:_SHOWN])}{more}." if columns else "No task has any further column."
    own = f" {column} is a field of tasks: write it without `{ROW}.`." if TASKS.find(column) else ""
    return UsageError(f"No task has a column {column!r} in its dataset row.{meant}", hint=f"{known}{own}")


def _column(field: Field) -> str:
    return field.name.removeprefix(f"{ROW}.")


def _value(task: object, field: Field) -> object:
    for part in field.stored.split("."):
        if isinstance(task, dict):
            task = task.get(part)
    return task
