"""Suggested names, and the names of document kinds."""

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
        ("worker-77", ""),  # another unit, not a typing error
        ("zzz-0", ""),
    ],
)
def test_only_similar_names_are_suggested(typed: str, meant: str) -> None:
    assert nearest(typed, KNOWN) == meant


def test_document_kinds_have_plain_names() -> None:
    assert (plural("Task"), singular("Record"), singular("Publication")) == ("tasks", "record", "version")
    assert plural("Owner") == "Owner", "other kinds keep their name"
