"""Implements the feed: holds every row of the run and publishes the rows that change.

Invariants:
- Rows are whole, so the newest one of a key replaces all earlier ones.
- A row is encoded once per change that is sent.
- Every published row raises `seq` by one, and the beat carries it, so a subscriber sees any gap.
- A snapshot is never older than its sequence number (it may be newer, which is harmless for whole rows).
- Rows that are not urgent keep to a budget of bytes, and each of them is sent within a bounded time.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable

import msgspec

from agentrl.protocol import wire
from agentrl.protocol.feed import FeedBeat, FeedRow
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.protocol.rows import AnyRow

MIN_GAP_S = 0.5
"""At most two rows per second and key, except urgent ones."""
BEAT_S = 1.0
BUDGET_BYTES_PER_S = 15_000
"""The budget for all rows that are not urgent. If hundreds of units change all the time, each is shown less often."""
REFRESH_S = 9.0
"""The budget grows with the rows, so that even if all of them change, each is shown within this time."""
BURST_S = 1.0
"""A quiet feed saves up this much of its budget."""


MOST_ROW_BYTES = MAX_MESSAGE_BYTES - 4096
"""A message holds a row and its key."""
log = logging.getLogger(__name__)


class _Entry:
    """One key. `row` is None once it was removed."""

    __slots__ = ("body", "dirty", "due", "first", "held", "row", "sent_bytes")

    def __init__(self) -> None:
        self.row: AnyRow | None = None
        self.body: msgspec.Raw | None = None
        self.dirty = False
        self.held = False
        self.first = False
        """Whether it is sent before others, within the same limits."""
        self.due = float("-inf")
        self.sent_bytes = 0

    def encoded(self) -> msgspec.Raw:
        if self.body is None:
            self.body = wire.raw(self.row)
        return self.body


class Feed:
    """All rows of one lifetime of the coordinator (its epoch)."""

    def __init__(self, epoch: str, publish: Callable[[bytes], object]) -> None:
        self.epoch = epoch
        self.seq = 0
        """Number of the last published row."""
        self.on_row: Callable[[str, AnyRow | None, msgspec.Raw | None], object] = lambda key, row, value: None
        """Called with every published row and its bytes, or with None for a removed row."""
        self._publish = publish
        self._kinds: dict[str, dict[str, _Entry]] = {}
        self._changed: dict[str, _Entry] = {}
        self._later: dict[str, Callable[[], AnyRow]] = {}
        self._held: list[tuple[float, str]] = []
        self._too_large: set[str] = set()
        self._now = float("-inf")
        self._next_beat = float("-inf")
        self._bytes = 0
        """Size of all rows as they were sent last."""
        self._spent_until = float("-inf")
        """The time up to which the budget is spent."""

    def set(self, key: str, row: AnyRow, *, urgent: bool = False, first: bool = False) -> bool:
        """Set a row. Returns True if it differs from the last one. Urgent rows (a state, an alert) are sent at once;
        `first` rows keep to all limits but are sent before others."""
        entry = self._kinds.setdefault(kind_of(key), {}).setdefault(key, _Entry())
        if entry.row == row:
            return False
        entry.row, entry.body = row, None
        entry.first |= first
        self._touch(key, entry, urgent)
        return True

    def set_later(self, key: str, make: Callable[[], AnyRow]) -> None:
        """Announce that a summary row may have changed: `make` is called once, when the row is needed."""
        self._later[key] = make

    def remove(self, key: str) -> bool:
        """Remove a row. This is always urgent."""
        self._later.pop(key, None)
        entry = self._entry(key)
        if entry is None or entry.row is None:
            return False
        entry.row, entry.body = None, None
        self._touch(key, entry, urgent=True)
        return True

    def get(self, key: str) -> AnyRow | None:
        self._make_later()
        entry = self._entry(key)
        return None if entry is None else entry.row

    def rows(self, kinds: Iterable[str] = ()) -> dict[str, AnyRow]:
        """Rows by key, of the given kinds (the part of the key before the slash) or all."""
        self._make_later()
        return {key: entry.row for key, entry in self._entries(kinds) if entry.row is not None}

    def snapshot(self, kinds: Iterable[str] = ()) -> tuple[list[tuple[str, msgspec.Raw]], int]:
        """All rows, and the sequence number from which subscribers apply the feed."""
        self._make_later()
        there = ((key, entry) for key, entry in self._entries(kinds) if entry.row is not None)
        return [(key, entry.encoded()) for key, entry in there if self._fits(key, entry)], self.seq

    def tick(self, now: float, at: float) -> None:
        """Publish the rows that are due, and the beat; call it several times a second."""
        self._now = now
        self._make_later()
        while self._held and self._held[0][0] <= now:
            _, key = heapq.heappop(self._held)
            entry = self._entry(key)
            if entry is not None and entry.held:
                entry.held = False
                self._changed[key] = entry
        self._spent_until = max(self._spent_until, now - BURST_S)
        changed, self._changed = self._changed, {}
        for key, entry in sorted(changed.items(), key=lambda item: not item[1].first):
            if self._spent_until < now:
                self._send_or_hold(key, entry, now)
            else:
                self._changed[key] = entry  # The row is sent early in the next tick.
        if now >= self._next_beat:
            self.beat(now, at)

    def beat(self, now: float, at: float) -> None:
        """Publish the sequence number now, for a new subscriber."""
        self._next_beat = now + BEAT_S
        self._publish(wire.encode(FeedBeat(self.epoch, self.seq, now, at)))

    def _make_later(self) -> None:
        later, self._later = self._later, {}
        for key, make in later.items():
            self.set(key, make())

    def _touch(self, key: str, entry: _Entry, urgent: bool) -> None:
        entry.dirty = True
        if urgent:
            self._send(key, entry)
        elif not entry.held:
            self._changed[key] = entry

    def _send_or_hold(self, key: str, entry: _Entry, now: float) -> None:
        if entry.due <= now:
            self._spent_until += self._send(key, entry) / max(BUDGET_BYTES_PER_S, self._bytes / REFRESH_S)
        elif entry.dirty and not entry.held:
            entry.held = True
            heapq.heappush(self._held, (entry.due, key))

    def _send(self, key: str, entry: _Entry) -> int:
        """Returns the number of bytes sent."""
        if not entry.dirty:
            return 0
        entry.dirty = entry.first = False
        if entry.row is not None and not self._fits(key, entry):
            return 0
        entry.due = self._now + MIN_GAP_S
        self.seq += 1
        value = None if entry.row is None else entry.encoded()
        frame = wire.encode(FeedRow(self.epoch, self.seq, key, wire.raw(None) if value is None else value))
        self._publish(frame)
        size = 0 if entry.row is None else len(frame)
        self._bytes += size - entry.sent_bytes
        entry.sent_bytes = size
        self.on_row(key, entry.row, value)
        if entry.row is None:
            self._forget(key, entry)
        return len(frame)

    def _fits(self, key: str, entry: _Entry) -> bool:
        """Whether the row fits into a message. If not, subscribers keep the last one, and the log says so once."""
        size = len(entry.encoded())
        if size <= MOST_ROW_BYTES:
            self._too_large.discard(key)
            return True
        if key not in self._too_large:
            self._too_large.add(key)
            log.error("the row %s has %d bytes and cannot be shown: it does not fit into a message", key, size)
        return False

    def _forget(self, key: str, entry: _Entry) -> None:
        rows = self._kinds[kind_of(key)]
        if rows.get(key) is entry:
            del rows[key]

    def _entry(self, key: str) -> _Entry | None:
        return self._kinds.get(kind_of(key), {}).get(key)

    def _entries(self, kinds: Iterable[str]) -> Iterable[tuple[str, _Entry]]:
        for kind in tuple(kinds) or tuple(self._kinds):
            yield from self._kinds.get(kind, {}).items()


def kind_of(key: str) -> str:
    """`unit/web-0` -> `unit`; `run` -> `run`."""
    return key.partition("/")[0]
