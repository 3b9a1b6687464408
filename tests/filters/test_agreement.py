"""MongoDB and the evaluation on dictionaries agree; all pages together are the whole list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.write_concern import WriteConcern

from agentrl.filters.evaluate import matches
from agentrl.filters.expressions import Compare, Expression
from agentrl.filters.mongo import to_mongo
from agentrl.filters.sorting import after, parse_sort, to_mongo_sort, values_of
from tests.filters.queries import FIELDS, NOW, TEXT, documents, expressions

Documents = list[dict[str, Any]]

some_documents = st.lists(documents, max_size=8, unique_by=lambda document: document["id"])
real = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def collection(mongo_url: str) -> Iterator[Collection[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_url) as client:
        # Nobody needs the data after the test, so writes do not wait for the disk.
        yield client["filters"].get_collection("documents", write_concern=WriteConcern(w=1, j=False))


def keep(collection: Collection[dict[str, Any]], rows: Documents) -> None:
    collection.delete_many({})
    if rows:
        collection.insert_many([{"_id": row["id"], **{k: v for k, v in row.items() if k != "id"}} for row in rows])


@given(rows=some_documents, expression=expressions)
@real
@example(rows=[{"id": "a", "error": "KELVIN K"}], expression=Compare(TEXT, "~", "k"))
def test_mongodb_and_evaluation_find_the_same(
    collection: Collection[dict[str, Any]], rows: Documents, expression: Expression
) -> None:
    keep(collection, rows)
    found = {row["_id"] for row in collection.find(to_mongo(expression, NOW))}
    assert found == {row["id"] for row in rows if matches(expression, row, NOW)}, str(expression)


sorts = st.lists(
    st.sampled_from(("score", "status", "created_at", "signal", "nested.depth", "id")), max_size=3, unique=True
).flatmap(lambda names: st.tuples(*(st.sampled_from((name, f"-{name}")) for name in names)).map(",".join))


@given(rows=some_documents, sort=sorts, size=st.integers(1, 4))
@real
def test_all_pages_together_are_the_whole_list(
    collection: Collection[dict[str, Any]], rows: Documents, sort: str, size: int
) -> None:
    keep(collection, rows)
    keys = parse_sort(sort, FIELDS)
    order = to_mongo_sort(keys)
    whole = [row["_id"] for row in collection.find().sort(order)]
    paged: list[str] = []
    behind: dict[str, Any] = {}
    while page := list(collection.find(behind).sort(order).limit(size)):
        paged += [row["_id"] for row in page]
        behind = after(keys, values_of(keys, {**page[-1], "id": page[-1]["_id"]}))
    assert paged == whole


@pytest.mark.parametrize(("sort", "whole"), [("score", "badc"), ("-score,-id", "cdab"), ("-score,id", "cadb")])
def test_missing_values_are_first_ascending_and_last_descending(
    collection: Collection[dict[str, Any]], sort: str, whole: str
) -> None:
    keep(collection, [{"id": "a", "score": 1.0}, {"id": "b"}, {"id": "c", "score": 2.0}, {"id": "d", "score": 1.0}])
    order = to_mongo_sort(parse_sort(sort, FIELDS))
    assert "".join(row["_id"] for row in collection.find().sort(order)) == whole
