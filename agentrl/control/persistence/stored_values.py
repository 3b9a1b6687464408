"""Decodes entries of the journal, even entries that another version or a fault wrote.

Invariants:
- A field that cannot be read never hides the other fields of its entry.
- An entry that could not be read is reported, and stays in the journal under `unreadable`.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec

from agentrl.control.persistence.journal import Batch, Journal, SetAside

KIND_UNREADABLE = "unreadable"
T = TypeVar("T")
log = logging.getLogger(__name__)


class StoredValues:
    """The entries of a journal, decoded by kind. `unreadable` collects what could not be decoded."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.unreadable: list[SetAside] = []

    def all(self, kind: str, of: type[T]) -> dict[str, T]:
        """Every entry of the kind that can be decoded."""
        found: dict[str, T] = {}
        for key, body in self.journal.all(kind).items():
            try:
                found[key] = msgspec.msgpack.decode(body, type=of)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as broken:
                self.report(kind, key, body, str(broken))
        return found

    def partly(self, kind: str, of: type[T]) -> dict[str, tuple[T | None, dict[str, Any]]]:
        """Every entry of the kind: decoded, or None with those of its fields that can be decoded."""
        found: dict[str, tuple[T | None, dict[str, Any]]] = {}
        for key, body in self.journal.all(kind).items():
            try:
                found[key] = msgspec.msgpack.decode(body, type=of), {}
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as broken:
                self.report(kind, key, body, str(broken))
                found[key] = None, _readable_fields(of, body)
        return found

    def report(self, kind: str, key: str, body: bytes, why: str) -> None:
        """Keep an entry that cannot be read: the entry itself may be overwritten soon."""
        if any((entry.kind, entry.key) == (kind, key) for entry in self.unreadable):
            return
        log.error("the journal entry %s %s cannot be read: %s", kind, key, why)
        self.unreadable.append(SetAside(kind, key, why))
        batch = Batch()
        batch.put(KIND_UNREADABLE, f"{kind} {key}", body)
        self.journal.commit(batch)


def _readable_fields(of: type[Any], body: bytes) -> dict[str, Any]:
    try:
        plain = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(of):
        if isinstance(plain, dict) and field.name in plain:
            try:
                fields[field.name] = msgspec.convert(plain[field.name], field.type)
            except msgspec.ValidationError:
                continue
    return fields
