"""Loads the data of earlier coordinators from the journal.

Invariants:
- All durable data is loaded.
- An unreadable entry is logged and left out, never guessed.
"""

from __future__ import annotations

import logging
import secrets
from typing import TypeVar

import msgspec

from agentrl.control.instruction_queue import KIND_GROUP, KIND_RUN, KIND_SLOT
from agentrl.control.persistence.journal import Batch, Journal
from agentrl.control.state.operations import Operation
from agentrl.errors import ProtocolError
from agentrl.protocol.rows import IncidentRow
from agentrl.protocol.wire import decode_row
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State

log = logging.getLogger(__name__)
T = TypeVar("T")


def load_state(journal: Journal) -> State:
    """Desired state and slots."""
    runs = _read(journal, KIND_RUN, RunState)
    return State(
        run=runs.get("", RunState()),
        groups=_read(journal, KIND_GROUP, GroupState),
        slots=_read(journal, KIND_SLOT, Slot),
    )


def load_operations(journal: Journal) -> list[Operation]:
    return list(_read(journal, "operation", Operation).values())


def load_incidents(journal: Journal, count: int) -> list[IncidentRow]:
    """The newest incidents, ordered from the oldest."""
    found: list[IncidentRow] = []
    for event in journal.events(("incident",), limit=count):
        try:
            row = decode_row(event.body)
        except ProtocolError as broken:
            log.error("the journal entry of incident %s cannot be read: %s", event.id, broken)
            continue
        if isinstance(row, IncidentRow):
            found.append(row)
    return found


def run_secret(journal: Journal) -> bytes:
    """The secret that fencing tokens are derived from; created once per run."""
    known = journal.get("secret", "")
    if known is None:
        known = secrets.token_bytes(32)
        batch = Batch()
        batch.put("secret", "", known)
        journal.commit(batch)
    return known


def _read(journal: Journal, kind: str, of: type[T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for key, body in journal.all(kind).items():
        try:
            found[key] = msgspec.msgpack.decode(body, type=of)
        except msgspec.DecodeError as broken:
            log.error("the journal entry %s %s cannot be read: %s", kind, key, broken)
    return found
