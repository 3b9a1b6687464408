"""Translates a query for MongoDB. Pure.

Invariants: the query finds exactly what `evaluate.matches` accepts; text from a person becomes a value, never an
operator.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from agentrl.filters.expressions import Age, And, Compare, Expression, In, Moment, Not, Or, Value, containing, span_of

Query = dict[str, Any]

_SIGNS = {"=": "$eq", "!=": "$ne", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"}


def to_mongo(expression: Expression, now: datetime) -> Query:
    """The query for MongoDB. Ages are relative to `now`."""
    match expression:
        case And(()):
            return {}
        case And(parts):
            return {"$and": [to_mongo(part, now) for part in parts]}
        case Or(parts):
            return {"$or": [to_mongo(part, now) for part in parts]}
        case Not(part):
            return {"$nor": [to_mongo(part, now)]}
        case In(field, values):
            return _in(field.stored, values, now)
        case Compare(field, sign, value):
            return {field.stored: _condition(sign, value, now)}


def _condition(sign: str, value: Value, now: datetime) -> Query:
    if isinstance(value, Moment | Age):
        return _time(sign, *span_of(value, now))
    if sign == "~":
        return {"$regex": containing(str(value))}
    if sign == "!~":
        return {"$not": {"$regex": containing(str(value))}}
    return {_SIGNS[sign]: value}


def _time(sign: str, start: datetime, end: datetime) -> Query:
    within = {"$gte": start, "$lt": end}
    conditions: dict[str, Query] = {
        "=": within,
        "!=": {"$not": within},
        "<": {"$lt": start},
        "<=": {"$lt": end},
        ">": {"$gte": end},
        ">=": {"$gte": start},
    }
    return conditions[sign]


def _in(path: str, values: tuple[Value, ...], now: datetime) -> Query:
    times = [value for value in values if isinstance(value, Moment | Age)]
    if not times:
        return {path: {"$in": list(values)}}
    ranges: list[Query] = [{path: _time("=", *span_of(value, now))} for value in times]
    if None in values:
        ranges.append({path: {"$eq": None}})
    return {"$or": ranges}
