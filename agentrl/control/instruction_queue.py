"""Collects the instructions of one turn of the event loop, writes the journal, then performs them.

Invariants:
- Durable instructions are written before any other instruction of the turn is performed.
- While the journal cannot be written, no instruction is performed and no command is accepted.
- One turn is one transaction, for any number of events.
- An entry that can never be written is set aside and reported; the others are written. A unit whose slot is set
  aside is not spawned, because the next coordinator would not know it.
- An instruction that fails does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from agentrl.control.persistence.journal import Batch, Journal, SetAside
from agentrl.errors import DiskError
from agentrl.supervision import instructions as do
from agentrl.supervision.unit_slots import State

RETRY_S = 1.0
MOST_WAITING_EVENTS = 5000
"""While the journal cannot be written, the newest events wait; older ones are lost and counted."""
log = logging.getLogger(__name__)

KIND_RUN, KIND_GROUP, KIND_SLOT = "run", "group", "slot"


class Executor:
    """Collects instructions during a turn of the loop; writes and performs them at its end."""

    def __init__(self, journal: Journal, state: State, perform: Callable[[do.Instruction], None]) -> None:
        self._journal = journal
        self._state = state
        self._perform = perform
        self._loop = asyncio.get_running_loop()
        self._todo: list[do.Instruction] = []
        self._shows: dict[tuple[str, str], do.Publish] = {}
        self._puts: dict[tuple[str, str], bytes | None] = {}
        self._events: deque[tuple[str, str, float, bytes]] = deque()
        self._lost_events = 0
        self._after: list[Callable[[], None]] = []
        self._scheduled: asyncio.Handle | None = None
        self.full = ""
        """The reason while the journal cannot be written; else empty."""
        self.on_full: Callable[[], None] = lambda: None
        self.on_set_aside: Callable[[SetAside], None] = lambda entry: None
        self._slowest_commit_s = 0.0

    def add(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, do.Persist):
                # Encoded at the end of the turn, because only the last state of a turn is written.
                self._puts[instruction.kind, instruction.key] = b"" if not instruction.gone else None
            elif isinstance(instruction, do.Publish):
                # A row is shown once per turn, as it is at the end of the turn.
                self._shows[instruction.kind, instruction.key] = instruction
            else:
                self._todo.append(instruction)
        self._schedule()

    def put(self, kind: str, key: str, body: bytes | None) -> None:
        self._puts[kind, key] = body
        self._schedule()

    def withdraw(self, kind: str, key: str) -> None:
        """Discard a put that could not be written."""
        self._puts.pop((kind, key), None)

    def event(self, kind: str, id: str, at: float, body: bytes) -> None:
        if self.full and len(self._events) >= MOST_WAITING_EVENTS:
            self._events.popleft()
            self._lost_events += 1
        self._events.append((kind, id, at, body))
        self._schedule()

    def then(self, act: Callable[[], None]) -> None:
        """Call `act` when all entries of this turn are durable."""
        self._after.append(act)
        self._schedule()

    def slowest_commit_s(self) -> float:
        """Duration of the slowest commit since the last call."""
        slowest, self._slowest_commit_s = self._slowest_commit_s, 0.0
        return slowest

    def flush(self) -> None:
        """Write, then perform. Commands call it directly, to be durable before they are answered."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if self._puts or self._events:
            began = self._loop.time()
            batch, set_aside = self._batch()
            try:
                set_aside += self._journal.commit(batch)
            except DiskError as failed:
                self._retry_later(failed)
                return
            self._slowest_commit_s = max(self._slowest_commit_s, self._loop.time() - began)
            self._puts.clear()
            self._events.clear()
            self._report_set_aside(set_aside)
        if self.full:
            log.warning("the journal can be written again; %d events were lost", self._lost_events)
            self.full, self._lost_events = "", 0
            self.on_full()
        todo, self._todo = self._todo, []
        shows, self._shows = self._shows, {}
        for instruction in (*todo, *shows.values()):
            _run_safely(partial(self._perform, instruction))
        after, self._after = self._after, []
        for act in after:
            _run_safely(act)

    def _schedule(self) -> None:
        if self._scheduled is None:
            self._scheduled = self._loop.call_soon(self.flush)

    def _retry_later(self, failed: DiskError) -> None:
        self._scheduled = self._loop.call_later(RETRY_S, self.flush)
        if self.full != failed.message:
            log.error("%s No unit is started and no command accepted until it can be written.", failed.message)
            self.full = failed.message
            self.on_full()

    def _batch(self) -> tuple[Batch, list[SetAside]]:
        batch, set_aside = Batch(), []
        for (kind, key), body in self._puts.items():
            try:
                batch.put(kind, key, self._encoded(kind, key) if body == b"" else body)
            except (TypeError, ValueError, OverflowError) as refused:
                set_aside.append(SetAside(kind, key, str(refused)))
        for kind, id, at, body in self._events:
            batch.event(kind, id, at, body)
        return batch, set_aside

    def _encoded(self, kind: str, key: str) -> bytes | None:
        state = self._state
        if kind == KIND_RUN:
            return msgspec.msgpack.encode(state.run)
        thing = state.groups.get(key) if kind == KIND_GROUP else state.slots.get(key)
        return msgspec.msgpack.encode(thing) if thing is not None else None

    def _report_set_aside(self, entries: list[SetAside]) -> None:
        units = {entry.key for entry in entries if entry.kind == KIND_SLOT}
        if units:
            self._todo = [each for each in self._todo if not (isinstance(each, do.Spawn) and each.unit in units)]
        for entry in entries:
            log.error("the journal entry %s %s cannot be written: %s", entry.kind, entry.key, entry.why)
            _run_safely(partial(self.on_set_aside, entry))


def _run_safely(act: Callable[[], None]) -> None:
    """Log the failure of one act, so that the others are still done."""
    try:
        act()
    except Exception:
        log.exception("%s failed", act)
