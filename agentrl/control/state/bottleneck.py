"""Finds the bottleneck of the data plane: how busy each role is, and for which role the others wait.

Invariants:
- Shares are computed over intervals (used seconds of slots divided by offered seconds), never from single moments.
- The sentence names one bottleneck, and its beginning only if the numbers show it.
- A run without such metrics has no row.
- While the trainer takes no steps, the sentence says so, and shares are counted from that moment, because older counts
  would show a state that is over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from agentrl.protocol.rows import BottleneckRow, ToolLoad
from agentrl.telemetry.data_plane_metrics import (
    BUSY,
    IN_MODEL,
    IN_TOOLS,
    OFFERED,
    TOOL_FAILURES,
    TOOL_P95,
    TOOL_RATE,
    named_in,
)

EVERY_S = 10.0
WINDOW_S = 60.0
HISTORY = 360
"""Samples of the latency of a tool: one hour."""
SATURATED = 0.9
"""A trainer that is this busy is the bottleneck."""
IDLE = 0.02
CHANGED = 1.5
"""The factor by which a latency must differ to count as changed."""
STEADY = 3
"""How many samples a change must last."""
BEFORE = 30
MOST_TOOLS = 20
_COUNTERS = (BUSY.name, OFFERED.name, IN_TOOLS.name, IN_MODEL.name)

Series = Sequence[tuple[float, float]]


@dataclass(slots=True)
class _Unit:
    role: str
    incarnation: int
    counters: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)

    def begin_again(self) -> None:
        """Count from the last report."""
        while len(self.counters) > 1:
            self.counters.popleft()

    def increase(self) -> dict[str, float]:
        """The increase of each counter within the window."""
        if len(self.counters) < 2:
            return {}
        (_, first), (_, last) = self.counters[0], self.counters[-1]
        return {name: last[name] - first.get(name, 0.0) for name in last}


@dataclass(frozen=True, slots=True)
class Change:
    before: float
    after: float
    at: float


class BottleneckDetector:
    """Collects counters from the metrics of units and computes the row."""

    def __init__(self) -> None:
        self._units: dict[str, _Unit] = {}
        self._tools: dict[str, dict[str, float]] = {}
        self._latency: dict[str, deque[tuple[float, float]]] = {}
        self._kind, self._since = "", 0.0
        self._shown_at = float("-inf")
        self._no_steps = ""
        self.shown: BottleneckRow | None = None
        """The last row."""

    def take(self, unit: str, role: str, incarnation: int, values: Mapping[str, float], now: float) -> None:
        """Counters of a new incarnation start at zero, so no difference spans two incarnations."""
        counters = {name: values[name] for name in _COUNTERS if name in values}
        if counters:
            known = self._units.get(unit)
            if known is None or known.incarnation != incarnation:
                known = self._units[unit] = _Unit(role, incarnation)
            known.counters.append((now, counters))
            while len(known.counters) > 2 and known.counters[1][0] < now - WINDOW_S:
                known.counters.popleft()
        for metric in (TOOL_P95, TOOL_RATE, TOOL_FAILURES):
            for tool, value in named_in(values, metric):
                if tool in self._tools or len(self._tools) < MOST_TOOLS:
                    self._tools.setdefault(tool, {})[metric.name] = value

    def is_due(self, now: float, no_steps: str = "") -> bool:
        return now - self._shown_at >= EVERY_S or no_steps != self._no_steps

    def compute(self, now: float, alive: Collection[str], coming: str = "", no_steps: str = "") -> BottleneckRow | None:
        """The present row. Call it only when it is due, so that samples have even distances.

        `coming` describes a trainer that is not ready yet, `no_steps` says why the trainer takes no steps.
        """
        self._shown_at = now
        for unit in self._units.keys() - set(alive):
            del self._units[unit]
        if no_steps != self._no_steps:
            self._no_steps = no_steps
            for known in self._units.values():
                known.begin_again()
        self.shown = self._row(now, coming)
        return self.shown

    def _row(self, now: float, coming: str) -> BottleneckRow | None:
        for tool, values in self._tools.items():
            if TOOL_P95.name in values and values.get(TOOL_RATE.name):
                self._latency.setdefault(tool, deque(maxlen=HISTORY)).append((now, values[TOOL_P95.name]))
        increases = {name: unit.increase() for name, unit in self._units.items()}
        increases = {name: found for name, found in increases.items() if found.get(OFFERED.name)}
        if not increases and not self._no_steps:
            return None
        shares = {role: share for role in _ROLES if (share := self._share(increases, role)) is not None}
        tools = tuple(self._tool(name) for name in sorted(self._tools, key=self._weight, reverse=True))
        in_tools, in_model = self._of_episodes(increases)
        about_trainer = coming or self._no_steps
        if about_trainer:
            # The counters of a trainer that is not ready belong to its last incarnation.
            shares.pop("trainer", None)
        kind = bottleneck(shares, in_tools, in_model)
        if kind != self._kind:
            self._kind, self._since = kind, now
        slowest = tools[0] if kind == "tools" and tools else None
        since = slowest.changed_at if slowest is not None and slowest.changed_at else self._since
        if self._no_steps and shares.get("sampler", 0.0) <= IDLE:
            tools = ()  # Their rates include the last minute, in which the trainer may still have taken steps.
        return BottleneckRow(
            sentence=sentence(kind, shares, in_tools, in_model, slowest, about_trainer),
            bottleneck=kind,
            since_at=since,
            window_s=WINDOW_S,
            busy={role: round(share, 2) for role, share in shares.items()},
            units={name: round(found[BUSY.name] / found[OFFERED.name], 2) for name, found in sorted(increases.items())},
            in_tools=round(in_tools, 2),
            in_model=round(in_model, 2),
            tools=tools,
        )

    def _share(self, increases: Mapping[str, Mapping[str, float]], role: str) -> float | None:
        mine = [found for name, found in increases.items() if self._units[name].role == role]
        offered = sum(found[OFFERED.name] for found in mine)
        return sum(found[BUSY.name] for found in mine) / offered if offered else None

    def _of_episodes(self, increases: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
        """The shares of their time that episodes spend in tools and in model calls."""
        samplers = [found for name, found in increases.items() if self._units[name].role == "sampler"]
        busy = sum(found[BUSY.name] for found in samplers)
        if not busy:
            return 0.0, 0.0
        in_tools, in_model = (sum(one.get(name, 0.0) for one in samplers) for name in (IN_TOOLS.name, IN_MODEL.name))
        return min(1.0, in_tools / busy), min(1.0, in_model / busy)

    def _weight(self, tool: str) -> float:
        """How much time of episodes the tool takes, estimated from its p95."""
        values = self._tools[tool]
        return values.get(TOOL_RATE.name, 0.0) * values.get(TOOL_P95.name, 0.0)

    def _tool(self, name: str) -> ToolLoad:
        values = self._tools[name]
        change = change_of(list(self._latency.get(name, ())))
        return ToolLoad(
            name=name,
            p95_s=_rounded(values.get(TOOL_P95.name, 0.0)),
            calls_per_s=_rounded(values.get(TOOL_RATE.name, 0.0)),
            failures=round(values.get(TOOL_FAILURES.name, 0.0), 2),
            before_s=_rounded(change.before) if change else 0.0,
            changed_at=change.at if change else 0.0,
        )


_ROLES = ("trainer", "engine", "sampler", "toolbox")


def bottleneck(busy: Mapping[str, float], in_tools: float, in_model: float) -> str:
    """trainer, tools, engines or admission; empty if no role waits or nothing is known."""
    if "trainer" not in busy:
        return ""
    if busy["trainer"] >= SATURATED:
        return "trainer"
    if busy.get("sampler", 0.0) <= IDLE:
        return "admission" if "sampler" in busy else ""
    if not in_tools and not in_model:
        return ""
    return "tools" if in_tools > in_model else "engines"


def sentence(
    kind: str,
    busy: Mapping[str, float],
    in_tools: float,
    in_model: float,
    slowest: ToolLoad | None,
    coming: str = "",
) -> str:
    """One line: the role that waits, how busy the other roles are, and their waits."""
    engines = f"engines {busy['engine']:.0%} busy" if "engine" in busy else ""
    if coming:
        return "; ".join(part for part in (coming, engines if busy.get("engine", 0.0) > IDLE else "") if part)
    if kind == "trainer":
        parts = [f"the trainer is {busy['trainer']:.0%} busy and never waits", engines]
        return "; ".join(part for part in parts if part)
    waits = f"trainer waits {1 - busy['trainer']:.0%} for batches" if "trainer" in busy else ""
    why = {
        "admission": "no episodes are under way: `agentrl why`",
        "tools": f"episodes {in_tools:.0%} in tools{_named(slowest)}",
        "engines": f"episodes {in_model:.0%} in model calls",
    }.get(kind, "")
    return "; ".join(part for part in (waits, engines, why) if part)


def _named(tool: ToolLoad | None) -> str:
    if tool is None:
        return ""
    if not tool.changed_at:
        return f": {tool.name} p95 {tool.p95_s:g} s"
    at = time.strftime("%H:%M", time.localtime(tool.changed_at))
    return f": {tool.name} p95 {tool.before_s:g} → {tool.p95_s:g} s since {at}"


def change_of(series: Series) -> Change | None:
    """The last lasting change: the median since then, and the median before."""
    if len(series) < 2 * STEADY:
        return None
    after = median(value for _, value in series[-STEADY:])
    begin = len(series)
    while begin > 0 and _alike(series[begin - 1][1], after):
        begin -= 1
    earlier = [value for _, value in series[max(0, begin - BEFORE) : begin]]
    if len(earlier) < STEADY or len(series) - begin < STEADY:
        return None
    before = median(earlier)
    return None if _alike(before, after) else Change(before, after, series[begin][0])


def _alike(one: float, other: float) -> bool:
    least, most = sorted((one, other))
    return most <= CHANGED * least


def _rounded(value: float) -> float:
    """Two digits, so that small changes do not change the row."""
    return float(f"{value:.2g}")
