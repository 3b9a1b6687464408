"""A place in a list carries the values of its last row, whatever kind of number the server made of them."""

from __future__ import annotations

from bson import Int64

from agentrl.filters.fields import Field
from agentrl.filters.sorting import SortKey
from agentrl.store import list_cursors


def test_a_large_number_of_the_server_is_carried_as_a_whole_number() -> None:
    keys = [SortKey(Field("step", "number")), SortKey(Field("_id", "text"))]
    place = list_cursors.written("steps", keys, {"step": Int64(1 << 40), "_id": "a"})
    assert list_cursors.read(place, "steps", keys) == [1 << 40, "a"]
