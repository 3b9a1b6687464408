"""Filters and sorts rows in memory, for lists that are not in a database.

Invariants: a row without a value comes first in ascending and last in descending order, as in lists of MongoDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from agentrl.filters.evaluate import lookup, matches, type_of
from agentrl.filters.fields import Fields
from agentrl.filters.parser import parse
from agentrl.filters.sorting import parse_sort

R = TypeVar("R", bound=msgspec.Struct)


def select(rows: Sequence[R], fields: Fields, *, filter: str, sort: str, limit: int, now: datetime) -> list[R]:
    """The first rows that match, in this order. Raises FilterError."""
    expression = parse(filter, fields) if filter.strip() else None
    keys = parse_sort(sort, fields)
    plain = [(row, msgspec.structs.asdict(row)) for row in rows]
    found = [(row, values) for row, values in plain if expression is None or matches(expression, values, now)]
    for key in reversed(keys):
        name = key.field.in_rows
        found.sort(key=lambda pair: _rank(lookup(pair[1], name)), reverse=key.descending)
    return [row for row, _ in found[:limit]]


def _rank(value: object) -> tuple[bool, str, object]:
    return (value is not None, type_of(value), value if value is not None else 0)
