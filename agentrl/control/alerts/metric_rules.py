"""Rules of a run's own, on a number that a unit reports or that is measured of it.

Invariants: a rule judges every unit by itself; a number that is not reported any more (the unit died, or hangs) says
nothing, and other rules speak of that; the value that ends an alert lies on the good side of the one that begins it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from agentrl.control.alerts.lifecycle import Finding, World
from agentrl.protocol.rows import Severity, UnitRow
from agentrl.telemetry.metrics import METRICS, UNIT_METRICS

STALE_S = 60.0
HISTORY_S = 600.0
ROW_METRICS = tuple(metric.name for metric in UNIT_METRICS)
"""What can be asked of any unit, also of one that reports nothing; a unit's own number of that name comes first."""


class Declaration(Protocol):
    """A rule as the run's configuration declares it."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def of(self) -> str: ...
    @property
    def above(self) -> float | None: ...
    @property
    def below(self) -> float | None: ...
    @property
    def clear(self) -> float | None: ...
    @property
    def for_s(self) -> float: ...
    @property
    def severity(self) -> Severity: ...
    @property
    def sentence(self) -> str: ...
    @property
    def suggest(self) -> str: ...


@dataclass(frozen=True)
class MetricRule:
    """One rule of the run's configuration."""

    declared: Declaration
    stale_s: float = STALE_S
    name: str = field(init=False)
    severity: Severity = field(init=False)
    for_s: float = field(init=False)
    certain: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.declared.name)
        object.__setattr__(self, "severity", self.declared.severity)
        object.__setattr__(self, "for_s", self.declared.for_s)

    def check(self, world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
        for name, unit in world.units.items():
            if self.declared.of not in (name, unit.group):
                continue
            value = self._value(world, unit, now)
            if value is not None and self._bad(value, standing=name in alerting):
                yield Finding(
                    name, self._sentence(name, value), self._evidence(world, unit, value, now), self._cure(name)
                )

    def _value(self, world: World, unit: UnitRow, now: float) -> float | None:
        reported = world.metrics.values(unit.unit, now, self.stale_s)
        if self.declared.metric in reported:
            return reported[self.declared.metric]
        if self.declared.metric in ROW_METRICS:
            return float(getattr(unit, self.declared.metric))
        return None

    def _bad(self, value: float, *, standing: bool) -> bool:
        above, below, clear = self.declared.above, self.declared.below, self.declared.clear
        if above is not None:
            return value > (clear if standing and clear is not None else above)
        if below is not None:
            return value < (clear if standing and clear is not None else below)
        return False

    def _limit(self) -> tuple[str, float]:
        if self.declared.above is not None:
            return "above", self.declared.above
        return "below", self.declared.below if self.declared.below is not None else 0.0

    def _sentence(self, name: str, value: float) -> str:
        side, threshold = self._limit()
        text = self.declared.sentence or f"{{metric}} of {{subject}} is {{value}}, {side} {{threshold}}."
        metric = self.declared.metric
        words = {
            "subject": name,
            "metric": metric,
            "value": _in_words(metric, value),
            "threshold": _in_words(metric, threshold),
        }
        return _filled(text, words)

    def _cure(self, name: str) -> str:
        return _filled(self.declared.suggest, {"subject": name}) or f"agentrl logs {name}"

    def _evidence(self, world: World, unit: UnitRow, value: float, now: float) -> tuple[str, ...]:
        side, threshold = self._limit()
        ends = "" if self.declared.clear is None else f", ends at {self.declared.clear:g}"
        lines = [f"{self.declared.metric} = {value:g} (alert {side} {threshold:g} for {self.declared.for_s:g} s{ends})"]
        times, values = world.metrics.history(unit.unit, self.declared.metric, now - HISTORY_S)
        if len(values) > 1:
            mean = sum(values) / len(values)
            lines.append(
                f"in the last {times[-1] - times[0]:.0f} s: least {min(values):g}, mean {mean:g}, most {max(values):g}"
            )
        if unit.status:
            lines.append(f"status: {unit.status}")
        return tuple(lines)


def metric_rules(declared: Iterable[Declaration]) -> list[MetricRule]:
    return [MetricRule(rule) for rule in declared]


def metrics_read(declared: Iterable[Declaration]) -> frozenset[str]:
    """Names whose history has to be kept, and which rows show."""
    return frozenset(rule.metric for rule in declared)


def _in_words(metric: str, value: float) -> str:
    known = METRICS.get(metric)
    return f"{value:g}" if known is None else known.in_words(value)


def _filled(text: str, words: dict[str, str]) -> str:
    """Not str.format: a sentence with a stray brace is no reason to lose an alert."""
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", value)
    return text
