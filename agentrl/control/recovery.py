"""Loads the data of earlier coordinators from the journal.

Invariants:
- All durable data is loaded.
- Deadlines keep their distance from now if the wall clock was set while no coordinator ran.
- An entry that cannot be read costs no living process: a run stays up, a group keeps its units, and a unit is lost
  until a host reports it.
- What could not be read becomes an incident.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

import msgspec
from msgspec.structs import replace

from agentrl.control.clock import Clock
from agentrl.control.instruction_queue import KIND_GROUP, KIND_RUN, KIND_SLOT
from agentrl.control.persistence.journal import Batch, Journal
from agentrl.control.persistence.stored_values import StoredValues
from agentrl.control.state.operations import Operation
from agentrl.errors import ProtocolError
from agentrl.protocol.rows import IncidentRow, UnitState
from agentrl.protocol.specs import split_unit
from agentrl.protocol.wire import decode_row, encode
from agentrl.supervision.joined_hosts import JoinedHost
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State

log = logging.getLogger(__name__)
UNREADABLE = "its journal entry cannot be read"
AFTER_ALL_INCARNATIONS = 10_000
"""The number of an incarnation whose number cannot be read: higher than any that was used, so that none is reused."""

SMALLEST_JUMP_S = 1.0
"""Smaller differences change no decision."""


def load_state(stored: StoredValues, now: float) -> State:
    """Desired state and slots."""
    runs = stored.partly(KIND_RUN, RunState)
    run, fields = runs.get("", (RunState(), {}))
    groups = stored.partly(KIND_GROUP, GroupState)
    slots = {
        unit: slot or _lost_slot(unit, fields, now) for unit, (slot, fields) in stored.partly(KIND_SLOT, Slot).items()
    }
    whole = {name: group or _group_of(name, fields, slots) for name, (group, fields) in groups.items()}
    hosts = {*stored.journal.all("host"), *(slot.host for slot in slots.values())} - {""}
    return State(
        run=run or RunState(**{"up": True, "hosts": hosts, **fields}),
        groups={name: group for name, group in whole.items() if group is not None},
        slots=slots,
    )


def _lost_slot(unit: str, fields: dict[str, Any], now: float) -> Slot:
    """A slot whose process may be alive. If a host has it in its ledger, the slot continues; if no host has it, the
    process has ended."""
    group, number = split_unit(unit)
    known = {"group": group, "number": number, "incarnation": AFTER_ALL_INCARNATIONS, **fields, "unit": unit}
    if "incarnation" not in fields:
        known.pop("host", None)  # the ledger of its host tells which incarnation it is
    if fields.get("tree_gone") is True and "state" in fields:
        return Slot(**known)
    alive = {"state": UnitState.LOST, "reason": UNREADABLE, "leader_gone": False, "tree_gone": False, "came_up": True}
    return Slot(**{"since": now, **known, **alive, "timer": 0.0})


def _group_of(name: str, fields: dict[str, Any], slots: dict[str, Slot]) -> GroupState | None:
    """A group whose own spec is unreadable, with the spec that its units were started with."""
    members = [slot for slot in slots.values() if slot.group == name]
    spec = fields.get("spec") or next((slot.spec for slot in members if slot.spec is not None), None)
    if spec is None:
        return None
    count = sum(slot.wanted for slot in members)
    return GroupState(
        **{"file_count": count, **fields, "spec": spec if "spec" in fields else replace(spec, count=count)}
    )


class ClockMark(msgspec.Struct, frozen=True):
    """How coordinator time related to the monotonic clock of a boot."""

    boot_id: str
    offset: float


def follow_clock(stored: StoredValues, clock: Clock, boot_id: str) -> None:
    """Correct the times that the last coordinator wrote if the wall clock was set since.

    Otherwise a clock that was set back by an hour would delay each restart by an hour, and one that was set forward
    would end each announced phase.
    """
    slots = stored.all(KIND_SLOT, Slot)
    mark = stored.all("clock", ClockMark).get("")
    same_boot = mark is not None and mark.boot_id == boot_id
    if mark is not None and same_boot:
        jump_s = clock.offset - mark.offset
    else:
        # After a reboot the monotonic clock is a different one. It is only certain that past times are not in the
        # future.
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
        for operation in load_operations(stored):
            operation.accepted_at += jump_s
            operation.deadline += jump_s
            batch.put("operation", operation.id, encode(operation))
    stored.journal.commit(batch)


def load_hosts(stored: StoredValues) -> dict[str, JoinedHost]:
    """The machines that have joined the run."""
    return stored.all("host", JoinedHost)


def load_operations(stored: StoredValues) -> list[Operation]:
    return list(stored.all("operation", Operation).values())


def load_incidents(stored: StoredValues, count: int) -> list[IncidentRow]:
    """The newest incidents, ordered from the oldest."""
    found: list[IncidentRow] = []
    for event in stored.journal.events(("incident",), limit=count):
        try:
            row = decode_row(event.body)
        except ProtocolError as broken:
            stored.report("incident", event.id, event.body, broken.message)
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
