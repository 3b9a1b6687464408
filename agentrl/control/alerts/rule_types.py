"""Defines alert rules: what a rule reads, what it finds, and the two common forms, a threshold and a normal band. Pure.

Invariants:
- A rule judges every subject separately.
- A missing number never raises an alert.
- While an alert is active, its subject is compared with the value that ends the alert, which lies on the good side of
  the threshold.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agentrl.config import alerts
from agentrl.control.state.knob_registry import KnobChange
from agentrl.control.state.progress import StandingStill
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.protocol.control_commands import WaitChain
from agentrl.protocol.rows import HostRow, IncidentRow, RunRow, Severity, UnitRow, UnitState
from agentrl.telemetry.control_plane_metrics import METRICS, UNIT_METRICS, Metric

BAND_EASE = 0.1
"""An alert on a band ends when the number is inside the band by this share of the limit."""
STALE_S = 60.0
"""The run's own rules ignore numbers that are older."""
HISTORY_S = 600.0


@dataclass(frozen=True)
class RunSnapshot:
    """The state of the run that rules read."""

    run: RunRow | None = None
    units: Mapping[str, UnitRow] = field(default_factory=dict)
    hosts: Mapping[str, HostRow] = field(default_factory=dict)
    chains: Sequence[WaitChain] = ()
    metrics: MetricStore = field(default_factory=MetricStore)
    incidents: Mapping[str, IncidentRow] = field(default_factory=dict)
    """The newest unplanned ends, by name of the incarnation."""
    standing_still: Sequence[StandingStill] = ()
    scientific_changes: Callable[[], Sequence[KnobChange]] = tuple
    """The last changes of scientific knobs, oldest first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a subject at this moment."""

    subject: str
    sentence: str
    evidence: tuple[str, ...] = ()
    suggest: str = ""
    severity: Severity | None = None
    """Replaces the severity of the rule."""
    explained_by: tuple[str, ...] = ()
    """Subjects whose own alerts would explain this one."""


@dataclass(frozen=True)
class Rule(ABC):
    """One row of the table of rules."""

    name: str
    severity: Severity = field(default=Severity.WARNING, kw_only=True)
    hold_s: float = field(default=0.0, kw_only=True)
    """How long the fault must last before the alert fires."""
    ends_at_once: bool = field(default=False, kw_only=True)
    """Set this if the finding never flickers: the alert then ends at the first evaluation without it."""

    @abstractmethod
    def find(self, snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterable[Finding]:
        """Returns the present faults. `active` holds the subjects for which the rule has an active alert."""


@dataclass(frozen=True)
class Condition(Rule):
    """A rule whose condition is a function."""

    function: Callable[[RunSnapshot, Collection[str], float], Iterable[Finding]]

    def find(self, snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterable[Finding]:
        return self.function(snapshot, active, now)


# ---- thresholds ----

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Measured(Generic[Row]):
    """A subject whose value is beyond the threshold."""

    name: str
    row: Row
    value: float
    snapshot: RunSnapshot
    now: float


@dataclass(frozen=True, kw_only=True)
class Threshold(Rule, Generic[Row]):
    """Finds subjects whose value is above (or below) a threshold. A condition is a value of 0 or 1."""

    subjects: Callable[[RunSnapshot], Mapping[str, Row]]
    value: Callable[[Row], float | None] = lambda row: None
    metric: str = ""
    """A reported number to use instead of `value`, if the subject reports it."""
    max_age_s: float = math.inf
    """How old a reported number may be."""
    above: float = 0.0
    below: float | None = None
    """If it is given, it replaces `above`."""
    clear: float | None = None
    """The value that ends an alert; None means the threshold itself."""
    reached: bool = False
    """Whether the threshold itself is beyond it already, and so is `clear`."""
    sentence: str | Callable[[Measured[Row]], str]
    """`{subject}`, `{metric}`, `{value}`, `{threshold}` and `{clear}` are replaced, also in `limits` and `cure`; and
    `{unit}` and `{part}` if the subject is a part of a unit."""
    evidence: Callable[[Measured[Row]], Iterable[str]] = lambda found: ()
    limits: str = ""
    """The last line of the evidence: where the alert begins and ends."""
    cure: str | Callable[[Measured[Row]], str]
    in_words: Callable[[float], str] = "{:g}".format
    explained_by: Callable[[Measured[Row]], tuple[str, ...]] = lambda found: ()

    def find(self, snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
        # All rules together look at ten thousand units within a small share of a processor.
        begins, is_above = self.threshold, self.below is None
        ends = self._ends
        for name, row in self.subjects(snapshot).items():
            value = self._value(snapshot, name, row, now) if self.metric else self.value(row)
            if value is None:
                continue
            limit = ends if name in active else begins
            if (value > limit if is_above else value < limit) or (self.reached and value == limit):
                found = Measured(name, row, value, snapshot, now)
                evidence = tuple(filter(None, (*self.evidence(found), self._text(self.limits, found))))
                sentence, cure = self._text(self.sentence, found), self._text(self.cure, found)
                yield Finding(name, sentence, evidence, cure, explained_by=self.explained_by(found))

    def _value(self, snapshot: RunSnapshot, name: str, row: Row, now: float) -> float | None:
        reported = snapshot.metrics.values(name, now, self.max_age_s)
        return reported[self.metric] if self.metric in reported else self.value(row)

    @property
    def threshold(self) -> float:
        return self.above if self.below is None else self.below

    @property
    def _ends(self) -> float:
        return self.threshold if self.clear is None else self.clear

    def _text(self, text: str | Callable[[Measured[Row]], str], found: Measured[Row]) -> str:
        if not isinstance(text, str):
            return text(found)
        numbers = {"value": found.value, "threshold": self.threshold, "clear": self._ends}
        words = {"subject": found.name, "metric": self.metric}
        words |= {name: self.in_words(number) for name, number in numbers.items()}
        unit, of_unit, part = found.name.partition("/")
        return filled(text, {**words, "unit": unit, "part": part} if of_unit else words)


def filled(text: str, words: Mapping[str, str]) -> str:
    """Replaces `{name}`. Not str.format: a stray brace in a sentence of the run file must not lose an alert."""
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", value)
    return text


# ---- bands ----


def trainers(snapshot: RunSnapshot) -> Mapping[str, UnitRow]:
    at_work = (UnitState.READY, UnitState.SUSPECT)
    lead = {name: unit for name, unit in snapshot.units.items() if unit.role == "trainer" and unit.leads}
    return {name: unit for name, unit in lead.items() if unit.state in at_work}


@dataclass(frozen=True)
class OutOfBand(Rule):
    """Finds units that report a number outside its normal band. If there are several metrics, one outside is enough."""

    metrics: tuple[Metric, ...]
    sentence: str
    """`{unit}`, `{weights}`, `{value}` (of the first metric outside its band) and names of metrics are replaced."""
    cure: str
    beside: tuple[Metric, ...] = ()
    """Metrics that are shown as further evidence."""
    unless: Callable[[Mapping[str, float]], bool] = lambda numbers: False
    """True if the numbers have a harmless explanation."""
    subjects: Callable[[RunSnapshot], Mapping[str, UnitRow]] = field(default=trainers, kw_only=True)

    def find(self, snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
        for name, unit in self.subjects(snapshot).items():
            numbers = snapshot.metrics.values(name)
            outside = [metric for metric in self.metrics if is_outside(metric, numbers, active=name in active)]
            if outside and not self.unless(numbers):
                shown = [metric for metric in (*self.metrics, *self.beside) if metric.name in numbers]
                words = {metric.name: metric.in_words(numbers[metric.name]) for metric in shown}
                words |= {"unit": name, "value": words[outside[0].name], "weights": str(unit.weights)}
                lines = [evidence_line(metric, numbers) for metric in shown]
                lines += [f"as of step {numbers['step']:.0f}"] if "step" in numbers else []
                yield Finding(name, filled(self.sentence, words), tuple(lines), filled(self.cure, words))


def is_outside(metric: Metric, numbers: Mapping[str, float], *, active: bool) -> bool:
    value = numbers.get(metric.name)
    if value is None or metric.normal is None:
        return False
    low, high = metric.normal
    ease = BAND_EASE if active else 0.0
    return value < low + ease * _size(low) or value > high - ease * _size(high)


def _size(limit: float) -> float:
    """The size of a limit; 0 for a side without one."""
    return abs(limit) if math.isfinite(limit) else 0.0


def evidence_line(metric: Metric, numbers: Mapping[str, float]) -> str:
    band = f" (normal: {metric.band_in_words()})" if metric.normal is not None else ""
    return f"{metric.name} = {metric.in_words(numbers[metric.name])}{band}: {metric.help}"


# ---- rules of the run file ----


def declared_rule(declared: alerts.Rule) -> Rule:
    """A row of the table for a rule of the run file: a threshold on a number of a unit, or of each unit of a group."""
    metric, side = declared.metric, "above" if declared.below is None else "below"
    rule = Threshold(
        declared.name,
        severity=declared.severity,
        hold_s=declared.for_s,
        subjects=lambda snapshot: {
            name: unit for name, unit in snapshot.units.items() if declared.of in (name, unit.group)
        },
        value=lambda unit: float(getattr(unit, metric)) if metric in _MEASURED else None,
        metric=metric,
        max_age_s=STALE_S,
        above=declared.above or 0.0,
        below=declared.below,
        clear=declared.clear,
        sentence=declared.sentence or f"{{metric}} of {{subject}} is {{value}}, {side} {{threshold}}.",
        evidence=lambda found: _history(declared, f"{side} {rule.threshold:g}", found),
        cure=declared.suggest or "agentrl logs {subject}",
        in_words=METRICS[metric].in_words if metric in METRICS else "{:g}".format,
    )
    return rule


def metrics_read(declared: Iterable[alerts.Rule]) -> frozenset[str]:
    """Names of the metrics whose history must be kept and which rows show."""
    return frozenset(rule.metric for rule in declared)


_MEASURED = {metric.name for metric in UNIT_METRICS}
"""Fields of a unit's row, which a rule can use even if the unit reports nothing."""


def _history(declared: alerts.Rule, limit: str, found: Measured[UnitRow]) -> Iterator[str]:
    ends = "" if declared.clear is None else f", ends at {declared.clear:g}"
    yield f"{declared.metric} = {found.value:g} (alert {limit} for {declared.for_s:g} s{ends})"
    times, values = found.snapshot.metrics.history(found.name, declared.metric, found.now - HISTORY_S)
    if len(values) > 1:
        mean = sum(values) / len(values)
        yield f"in the last {times[-1] - times[0]:.0f} s: least {min(values):g}, mean {mean:g}, most {max(values):g}"
    if found.row.status:
        yield f"status: {found.row.status}"
