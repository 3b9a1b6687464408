"""Evaluates a query on dictionaries, with the semantics of MongoDB.

Invariants: the result agrees with the translation for MongoDB on every document; a missing value equals null and is
neither smaller nor greater than any value; values of different types never match; a list matches if an item does.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from agentrl.filters.expressions import Age, And, Compare, Expression, In, Moment, Not, Or, Value, containing, span_of

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def matches(expression: Expression, document: Mapping[str, Any], now: datetime) -> bool:
    """Whether the document matches the query. Ages are relative to `now`."""
    match expression:
        case And(parts):
            return all(matches(part, document, now) for part in parts)
        case Or(parts):
            return any(matches(part, document, now) for part in parts)
        case Not(part):
            return not matches(part, document, now)
        case In(field, values):
            actual = lookup(document, field.in_rows)
            return any(_equal(actual, value, now) for value in values)
        case Compare(field, sign, value):
            return _holds(lookup(document, field.in_rows), sign, value, now)


def lookup(document: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted name, or None."""
    at: Any = document
    for part in name.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def as_stored(value: Any) -> Any:
    """A time as MongoDB stores it: in UTC, in milliseconds. Naive times are UTC."""
    if not isinstance(value, datetime):
        return value
    utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def type_of(value: Any) -> str:
    """Values of different types are never compared."""
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "time" if isinstance(value, datetime) else "null" if value is None else "other"


def _holds(actual: Any, sign: str, value: Value, now: datetime) -> bool:
    match sign:
        case "=":
            return _equal(actual, value, now)
        case "!=":
            return not _equal(actual, value, now)
        case "~":
            return _contains(actual, str(value))
        case "!~":
            return not _contains(actual, str(value))
    if isinstance(value, Moment | Age):
        return _time_holds(actual, sign, value, now)
    if isinstance(actual, list | tuple):
        return any(_holds(item, sign, value, now) for item in actual if not isinstance(item, list | tuple))
    return type_of(actual) == type_of(value) and _ORDER[sign](actual, value)


def _time_holds(actual: Any, sign: str, value: Moment | Age, now: datetime) -> bool:
    """Compares with the whole span of the written time: later than a day means from the next day on."""
    if not isinstance(actual, datetime):
        return False
    start, end = span_of(value, now)
    at = as_stored(actual)
    return bool({"<": at < start, "<=": at < end, ">": at >= end, ">=": at >= start}[sign])


def _equal(actual: Any, value: Value, now: datetime) -> bool:
    if isinstance(actual, list | tuple):
        return any(_equal(item, value, now) for item in actual)
    if isinstance(value, Moment | Age):
        start, end = span_of(value, now)
        return isinstance(actual, datetime) and bool(start <= as_stored(actual) < end)
    return type_of(actual) == type_of(value) and bool(actual == value)


def _contains(actual: Any, text: str) -> bool:
    if isinstance(actual, list | tuple):
        return any(_contains(item, text) for item in actual)
    return isinstance(actual, str) and re.search(containing(text), actual) is not None
