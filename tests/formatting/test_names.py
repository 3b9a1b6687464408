"""What a name is taken for, and what kinds of documents are called."""

from __future__ import annotations

import pytest

from agentrl.formatting.names import nearest, plural, singular

KNOWN = ("mongo", "mongo-0", "worker", "worker-0", "worker-2")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("wroker-2", "worker-2"),
        ("worker2", "worker-2"),
        ("wroker", "worker"),
        ("foo", ""),
        ("worker-77", ""),  # another unit, and no slip of the pen
        ("zzz-0", ""),
    ],
)
def test_only_what_is_near_is_suggested(typed: str, meant: str) -> None:
    assert nearest(typed, KNOWN) == meant


def test_kinds_have_words_of_people() -> None:
    assert (plural("Task"), singular("Record"), singular("Publication")) == ("tasks", "record", "version")
    assert plural("Owner") == "Owner", "what nobody asks for keeps its name"
