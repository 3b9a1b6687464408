"""Loads the data of earlier coordinators from the journal.

Invariants:
- All durable data is loaded.
- Deadlines keep their distance from now if the wall clock was set while no coordinator ran.
- An unreadable entry is logged and left out, never guessed.
"""

from __future__ import annotations

import logging
import secrets
from typing import TypeVar

import msgspec

from agentrl.control.clock import Clock
from agentrl.control.instruction_queue import KIND_GROUP, KIND_RUN, KIND_SLOT
from agentrl.control.persistence.journal import Batch, Journal
from agentrl.control.state.operations import Operation
from agentrl.errors import ProtocolError
from agentrl.protocol.rows import IncidentRow
from agentrl.protocol.wire import decode_row, encode
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State

log = logging.getLogger(__name__)
T = TypeVar("T")

SMALLEST_JUMP_S = 1.0
"""Smaller differences change no decision."""


def load_state(journal: Journal) -> State:
    """Desired state and slots."""
    runs = _read(journal, KIND_RUN, RunState)
    return State(
        run=runs.get("", RunState()),
        groups=_read(journal, KIND_GROUP, GroupState),
        slots=_read(journal, KIND_SLOT, Slot),
    )


class ClockMark(msgspec.Struct, frozen=True):
    """How coordinator time related to the monotonic clock of a boot."""

    boot_id: str
    offset: float


def follow_clock(journal: Journal, clock: Clock, boot_id: str) -> None:
    """Correct the times that the last coordinator wrote if the wall clock was set since.

    Otherwise a clock that was set back by an hour would delay each restart by an hour, and one that was set forward
    would end each announced phase.
    """
    slots = _read(journal, KIND_SLOT, Slot)
    mark = _read(journal, "clock", ClockMark).get("")
    same_boot = mark is not None and mark.boot_id == boot_id
    if mark is not None and same_boot:
        jump_s = clock.offset - mark.offset
    else:
        # Another boot has another monotonic clock. It is only certain that the past is not in the future.
        jump_s = min(0.0, clock.now() - max((slot.since for slot in slots.values()), default=0.0))
    if same_boot and abs(jump_s) < SMALLEST_JUMP_S:
        return
    batch = Batch()
    batch.put("clock", "", msgspec.msgpack.encode(ClockMark(boot_id, clock.offset)))
    if abs(jump_s) >= SMALLEST_JUMP_S:
        log.warning("the clock of this host was set by %+.0f s since the last coordinator", jump_s)
        for unit, slot in slots.items():
            slot.shift_times(jump_s)
            batch.put(KIND_SLOT, unit, msgspec.msgpack.encode(slot))
        for operation in load_operations(journal):
            operation.accepted_at += jump_s
            operation.deadline += jump_s
            batch.put("operation", operation.id, encode(operation))
    journal.commit(batch)


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
