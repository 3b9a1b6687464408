"""The sort order of a list, and the query for its next page.

    -score,started_at      highest score first; among equal scores the oldest first

Invariants: every order ends with the id, so a page never repeats or skips a row; missing values come first in
ascending order and last in descending order, as in MongoDB; the pages that `after` gives are together the whole list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.filters.evaluate import as_stored, lookup
from agentrl.filters.fields import Field, Fields, is_column
from agentrl.filters.mongo import Query
from agentrl.filters.parser import FilterError


@dataclass(frozen=True, slots=True)
class SortKey:
    field: Field
    descending: bool = False

    def __str__(self) -> str:
        return f"-{self.field.name}" if self.descending else self.field.name


def parse_sort(text: str, fields: Fields) -> tuple[SortKey, ...]:
    """Parses an order and adds the id. Raises FilterError if a field is unknown or has no order."""
    keys: list[SortKey] = []
    at = 0
    for part in text.split(",") if text.strip() else ():
        name = part.strip()
        place = at + len(part) - len(part.lstrip())
        keys.append(_key(text, place, name, fields))
        at += len(part) + 1
    if all(key.field.name != "id" for key in keys):
        identity = fields.find("id")
        assert identity is not None, "every document has an id"
        # In the direction of the last key, so that an index serves the order in both directions.
        keys.append(SortKey(identity, descending=bool(keys) and keys[-1].descending))
    return tuple(keys)


def _key(text: str, place: int, name: str, fields: Fields) -> SortKey:
    descending = name.startswith("-")
    name = name.removeprefix("-").removeprefix("+")
    field = fields.find_order(name)
    if field is None:
        nearest = fields.nearest(name)
        meant = f"; did you mean {nearest!r}?" if nearest else ""
        problem = f"there is no field {name!r}{meant}" if name else "the name of a field is missing"
        raise FilterError(text, place, problem, hint="" if nearest else f"Fields are: {', '.join(fields.names)}.")
    if field.kind == "texts":
        raise FilterError(text, place, f"{name} is a list and has no order")
    if is_column(field):
        raise FilterError(text, place, f"{name} is a column of the dataset, by which lists are not sorted")
    return SortKey(field, descending)


def to_mongo_sort(keys: Sequence[SortKey]) -> list[tuple[str, int]]:
    return [(key.field.stored, -1 if key.descending else 1) for key in keys]


def values_of(keys: Sequence[SortKey], document: Mapping[str, Any]) -> list[Any]:
    """The position of a document in this order."""
    return [as_stored(lookup(document, key.field.name)) for key in keys]


def after(keys: Sequence[SortKey], values: Sequence[Any]) -> Query:
    """A query for the rows after this position. Combine it with the filter by `$and`."""
    ways: list[Query] = []
    equal: list[Query] = []
    for key, value in zip(keys, values, strict=True):
        if (behind := _behind(key, value)) is not None:
            ways.append({"$and": [*equal, behind]})
        equal.append({key.field.stored: {"$eq": value}})
    return {"$or": ways} if ways else {"$nor": [{}]}


def _behind(key: SortKey, value: Any) -> Query | None:
    """A query for documents that come after a value by this key alone; None if there can be none."""
    path = key.field.stored
    is_nan = isinstance(value, float) and math.isnan(value)
    if value is None:
        return None if key.descending else {path: {"$ne": None}}
    if not key.descending:
        # NaN sorts before all numbers, but no comparison finds it.
        return {path: {"$gte": -math.inf}} if is_nan else {path: {"$gt": value}}
    nothing: list[Query] = [{path: {"$eq": None}}]
    if is_nan:
        return nothing[0]
    if key.field.kind == "number":
        nothing.append({path: {"$eq": math.nan}})
    return {"$or": [{path: {"$lt": value}}, *nothing]}
