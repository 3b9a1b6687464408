"""The order of lists, without a database."""

from __future__ import annotations

import pytest

from agentrl.filters.fields import RECORDS, TASKS
from agentrl.filters.parser import FilterError
from agentrl.filters.sorting import parse_sort, to_mongo_sort


def test_every_order_ends_with_the_id() -> None:
    keys = parse_sort("-score, created_at", RECORDS)
    assert [str(key) for key in keys] == ["-score", "created_at", "id"]
    assert to_mongo_sort(keys) == [("score", -1), ("created_at", 1), ("_id", 1)]
    assert [str(key) for key in parse_sort("", RECORDS)] == ["id"]
    assert [str(key) for key in parse_sort("-id", RECORDS)] == ["-id"]


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("scroe", 0, "did you mean 'score'?"),
        ("-score, -trns", 8, "did you mean 'turns'?"),
        ("score,,turns", 6, "missing"),
        ("score,", 6, "missing"),
    ],
)
def test_wrong_order_is_refused_with_its_position(text: str, position: int, says: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse_sort(text, RECORDS)
    assert refused.value.position == position
    assert says in refused.value.problem


def test_order_by_age_has_the_oldest_first() -> None:
    assert to_mongo_sort(parse_sort("age", RECORDS)) == [("started_at", 1), ("_id", 1)]
    assert to_mongo_sort(parse_sort("-age", TASKS)) == [("admitted_at", -1), ("_id", -1)]


def test_lists_have_no_order() -> None:
    with pytest.raises(FilterError, match="has no order"):
        parse_sort("servers", TASKS)
