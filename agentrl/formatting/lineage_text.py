"""Sentences about the base of a record and about its forks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lineage(record: Mapping[str, Any]) -> list[str]:
    """Sentences for a fork and for a base; empty for other records."""
    sentences = [f"forked: {id}" for id in record.get("forks") or ()]
    if fork := record.get("fork"):
        place = f"behind {fork['call']}" if fork.get("call") else f"with turn {fork.get('turns', 0)}"
        edited = ", with what a person wrote" if fork.get("edited") else ""
        sentences.insert(0, f"{fork['kind']} of {fork['base']}: it goes on {place}{edited}")
    return sentences


def relatives(record: Mapping[str, Any]) -> list[str]:
    """The related records: its base, and the forks that took its seat."""
    base = [record["fork"]["base"]] if record.get("fork") else []
    return [*base, *(id for id in record.get("forks") or () if "#" in id)]
