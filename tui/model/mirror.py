"""Holds the rows of the feed by kind and key, their age, and the state of the connection.

Invariants:
- A snapshot replaces all rows at once, so a partial one is never shown.
- Without a connection the rows stay until the next snapshot.
- The caller gives the time (`clock`, monotonic), so ages do not depend on wall clocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar, cast

from agentrl.formatting.row_text import active_alerts, alerts_by_cause, slot_order
from agentrl.protocol.messages import Permission
from agentrl.protocol.rows import (
    AlertRow,
    AnyRow,
    GroupRow,
    HostRow,
    IncidentRow,
    KnobRow,
    OperationRow,
    RunRow,
    UnitRow,
)

STALE_S = 5.0
"""An older view allows no command."""
TREND_POINTS = 60
TREND_EVERY_S = 2.0

K = TypeVar("K", bound=AnyRow)


@dataclass(slots=True)
class Link:
    """The connection to the coordinator."""

    connected: bool = False
    since: float = 0.0
    """The clock at which this state began."""
    why: str = "connecting"
    """The reason why there is no connection, as a sentence."""
    hint: str = ""
    tries: int = 0


class Changes:
    """Keys of some kinds that changed since the last look."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self._keys: set[str] = set()

    def note(self, key: str) -> None:
        if key.partition("/")[0] in self.kinds:
            self._keys.add(key)

    def take(self) -> set[str]:
        taken, self._keys = self._keys, set()
        return taken


@dataclass(slots=True)
class Trend:
    """Recent CPU and memory of a unit, as sampled by this console."""

    cpu: deque[float] = field(default_factory=lambda: deque(maxlen=TREND_POINTS))
    memory: deque[float] = field(default_factory=lambda: deque(maxlen=TREND_POINTS))


class Mirror:
    """All rows of the run."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.permission = Permission.ADMIN
        """The permission that is assumed until the coordinator answers; it checks every command in any case."""
        self.link = Link()
        self.trends: dict[str, Trend] = {}
        self.load: deque[float] = deque(maxlen=TREND_POINTS)
        """Recent CPU of all units together."""
        self._rows: dict[str, AnyRow] = {}
        self._kinds: dict[type[object], dict[str, AnyRow]] = {}
        """The same rows by kind."""
        self._coming: dict[str, AnyRow] | None = None
        """A snapshot that is not complete yet."""
        self._received_at: float | None = None
        self._watching: list[Changes] = []
        self._sampled = float("-inf")

    # ---- the feed ----

    def begin(self) -> None:
        """A snapshot follows."""
        self._coming = {}

    def put(self, key: str, row: AnyRow | None) -> None:
        if self._coming is not None:
            if row is not None:
                self._coming[key] = row
            return
        before = self._rows.pop(key, None)
        if before is not None:
            del self._kinds[type(before)][key]
        if row is not None:
            self._rows[key] = row
            self._kinds.setdefault(type(row), {})[key] = row
        self._note(key)

    def whole(self, clock: float) -> None:
        """The snapshot is complete, or a silence is over."""
        if self._coming is not None:
            coming, self._coming = self._coming, None
            for key in [key for key in self._rows if key not in coming]:
                self.put(key, None)
            for key, row in coming.items():
                if self._rows.get(key) != row:
                    self.put(key, row)
        self.message_received(clock)
        if not self.link.connected:
            self.link = Link(connected=True, since=clock, why="")

    def message_received(self, clock: float) -> None:
        """Note a message of the coordinator: the rows are up to date."""
        self._received_at = clock

    def lost(self, clock: float, why: str, hint: str = "") -> None:
        """The connection is lost for this reason; called again after every failed attempt."""
        self._coming = None
        since = self.link.since if not self.link.connected and self.link.tries else clock
        self.link = Link(connected=False, since=since, why=why, hint=hint, tries=self.link.tries + 1)

    def watch(self, *kinds: str) -> Changes:
        """Changes of these kinds from now on; existing rows count as changed."""
        changes = Changes(frozenset(kinds))
        self._watching.append(changes)
        for key in self._rows:
            changes.note(key)
        return changes

    def sample(self, clock: float) -> None:
        """Sample CPU and memory of every unit, at most every `TREND_EVERY_S`."""
        if clock - self._sampled < TREND_EVERY_S or not self.link.connected:
            return
        self._sampled = clock
        units = self.of(UnitRow)
        for row in units:
            found = self.trends.get(row.unit)
            if found is None:
                found = self.trends[row.unit] = Trend()
            found.cpu.append(row.cpu_percent)
            found.memory.append(row.rss_bytes)
        self.load.append(sum(row.cpu_percent for row in units))
        if len(self.trends) > len(units):
            living = {row.unit for row in units}
            self.trends = {unit: trend for unit, trend in self.trends.items() if unit in living}

    # ---- reading ----

    def age_s(self, clock: float) -> float | None:
        """The age of the rows; None before the first snapshot."""
        return None if self._received_at is None else max(0.0, clock - self._received_at)

    def fresh(self, clock: float) -> bool:
        """Whether the rows are recent enough for commands."""
        age = self.age_s(clock)
        return self.link.connected and age is not None and age <= STALE_S

    def get(self, key: str) -> AnyRow | None:
        return self._rows.get(key)

    def of(self, kind: type[K]) -> list[K]:
        return cast(list[K], list(self._kinds.get(kind, {}).values()))

    @property
    def run(self) -> RunRow | None:
        found = self._rows.get("run")
        return found if isinstance(found, RunRow) else None

    @property
    def groups(self) -> list[GroupRow]:
        return sorted(self.of(GroupRow), key=lambda row: row.name)

    @property
    def units(self) -> list[UnitRow]:
        return sorted(self.of(UnitRow), key=lambda row: (row.group, slot_order(row.unit)))

    @property
    def hosts(self) -> list[HostRow]:
        return sorted(self.of(HostRow), key=lambda row: row.host)

    @property
    def knobs(self) -> list[KnobRow]:
        return sorted(self.of(KnobRow), key=lambda row: row.name)

    @property
    def firing(self) -> list[AlertRow]:
        return active_alerts(self.of(AlertRow))

    @property
    def firing_by_cause(self) -> list[tuple[AlertRow, list[AlertRow]]]:
        return alerts_by_cause(self.firing)

    @property
    def under_way(self) -> list[OperationRow]:
        """Operations that have not ended, oldest first."""
        return sorted((row for row in self.of(OperationRow) if not row.state.ended), key=lambda row: row.accepted_at)

    def unit(self, name: str) -> UnitRow | None:
        found = self._rows.get(f"unit/{name}")
        return found if isinstance(found, UnitRow) else None

    def group(self, name: str) -> GroupRow | None:
        found = self._rows.get(f"group/{name}")
        return found if isinstance(found, GroupRow) else None

    def incidents(self, unit: str = "") -> list[IncidentRow]:
        """Incidents of a unit, or all; the newest first."""
        found = (row for row in self.of(IncidentRow) if not unit or row.unit == unit)
        return sorted(found, key=lambda row: row.at, reverse=True)

    def _note(self, key: str) -> None:
        for changes in self._watching:
            changes.note(key)
