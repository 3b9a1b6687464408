"""The run as the feed tells it: rows by kind and key, how old the view is, and since when nobody is heard.

Invariants: a snapshot takes the place of what was known in one piece, so no half of one is ever shown; rows that are
not heard of any more stay until the next snapshot; times are given by the caller (`clock`, a monotonic one), so the age
of the view is right whatever the clocks on the walls do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar, cast

from agentrl.formatting.row_text import by_gravity, slot_order
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
"""A view that is older is not acted on."""
TREND_POINTS = 60
TREND_EVERY_S = 2.0

K = TypeVar("K", bound=AnyRow)


@dataclass(slots=True)
class Link:
    """How it stands with the coordinator."""

    connected: bool = False
    since: float = 0.0
    """Clock at which that began."""
    why: str = "connecting"
    """Why nobody is heard, in a sentence."""
    hint: str = ""
    tries: int = 0


class Changes:
    """What has changed of some kinds since somebody looked last."""

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
    """What a unit used lately, as this console saw it."""

    cpu: deque[float] = field(default_factory=lambda: deque(maxlen=TREND_POINTS))
    memory: deque[float] = field(default_factory=lambda: deque(maxlen=TREND_POINTS))


class Mirror:
    """Everything that the console knows of the run."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.permission = Permission.ADMIN
        """Until the coordinator says otherwise; it has the last word anyhow."""
        self.link = Link()
        self.trends: dict[str, Trend] = {}
        self.load: deque[float] = deque(maxlen=TREND_POINTS)
        """Processor time of all units together, lately."""
        self._rows: dict[str, AnyRow] = {}
        self._kinds: dict[type[object], dict[str, AnyRow]] = {}
        """The same rows, by what they are."""
        self._coming: dict[str, AnyRow] | None = None
        """A snapshot that is not whole yet."""
        self._heard: float | None = None
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
        self.heard(clock)
        if not self.link.connected:
            self.link = Link(connected=True, since=clock, why="")

    def heard(self, clock: float) -> None:
        """The coordinator gave a sign of life; what is shown is what is."""
        self._heard = clock

    def lost(self, clock: float, why: str, hint: str = "") -> None:
        """Nobody is heard, for this reason; said again at every vain attempt."""
        self._coming = None
        since = self.link.since if not self.link.connected and self.link.tries else clock
        self.link = Link(connected=False, since=since, why=why, hint=hint, tries=self.link.tries + 1)

    def watch(self, *kinds: str) -> Changes:
        """Changes of these kinds from now on; what is there already counts as changed."""
        changes = Changes(frozenset(kinds))
        self._watching.append(changes)
        for key in self._rows:
            changes.note(key)
        return changes

    def sample(self, clock: float) -> None:
        """Remember what every unit uses now; call it as often as you like."""
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

    # ---- what is ----

    def age_s(self, clock: float) -> float | None:
        """How old the view is; None if nothing was ever seen."""
        return None if self._heard is None else max(0.0, clock - self._heard)

    def fresh(self, clock: float) -> bool:
        """Whether what is shown may be acted on."""
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
        return by_gravity(self.of(AlertRow))

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
        """Of a unit, or all; the newest first."""
        found = (row for row in self.of(IncidentRow) if not unit or row.unit == unit)
        return sorted(found, key=lambda row: row.at, reverse=True)

    def _note(self, key: str) -> None:
        for changes in self._watching:
            changes.note(key)
