"""Holds the state that a unit reports: progress, phases, waits, status, metrics.

Invariants:
- Any thread or task may write at any time; a write costs microseconds.
- A report contains the innermost phase; of several concurrent ones, the one with the nearest deadline.
- A tick restarts the deadlines of the phases around it and of no others.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import msgspec

from agentrl.protocol.knob import KnobValue
from agentrl.protocol.messages import UnitPart, UnitReport, Wait

MOST_WAITS = 20
"""The number of waits that a report lists; it counts the others."""
AGE_NEWS_S = 2.0
"""A reported wait of another unit counts as changed if its age differs by more than this from the expected age."""

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Phase:
    """Describes work that the loop announced, and how long it may continue without progress."""

    name: str
    at_most_s: float | None
    around: Phase | None
    touched: float
    """When it began or last progressed."""
    inside: int = 0
    """Open phases inside it."""

    @property
    def due(self) -> float:
        return float("inf") if self.at_most_s is None else self.touched + self.at_most_s


@dataclass(slots=True)
class _OpenWait:
    on: str
    what: str
    begun: float
    at_most_s: float


_current: ContextVar[Phase | None] = ContextVar("agentrl_phase", default=None)


class ReportedState:
    """Holds the newest values of the main loop. `on_change` is called without a lock after each change that must be
    reported.
    """

    def __init__(self, *, on_change: Callable[[], None] = lambda: None, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._phases: dict[int, Phase] = {}
        self._waits: dict[int, _OpenWait] = {}
        self._foreign: tuple[Wait, ...] = ()
        self._foreign_at = 0.0
        self._metrics: dict[str, float] = {}
        self._extend_stop_s: float | None = None
        self.ready = False
        self.status = ""
        self.weights: int | None = None
        self.serving = ""
        self.incomplete = ""
        self._problems: dict[str, str] = {}
        self.parts: tuple[UnitPart, ...] = ()
        self.progress = 0
        self._progressed = clock()
        self.revision = 0
        """Increased by every change that a report contains."""
        self.loop_turned: float | None = None
        """When the asyncio main loop last ran a timer; None for blocking main loops."""

    def write(
        self,
        *,
        ready: bool | None = None,
        status: str | None = None,
        weights: int | None = None,
        serving: str | None = None,
        incomplete: str | None = None,
        parts: tuple[UnitPart, ...] | None = None,
        extend_stop_s: float | None = None,
    ) -> None:
        """Set these values."""
        with self._lock:
            self.ready = self.ready if ready is None else ready
            self.status = self.status if status is None else status
            self.weights = self.weights if weights is None else weights
            self.serving = self.serving if serving is None else serving
            self.incomplete = self.incomplete if incomplete is None else incomplete
            self.parts = self.parts if parts is None else parts
            self._extend_stop_s = self._extend_stop_s if extend_stop_s is None else extend_stop_s
        self.changed()

    def problem(self, of: str, sentence: str) -> None:
        """Set or, without a sentence, remove the problem of a thing."""
        with self._lock:
            if self._problems.get(of, "") == sentence:
                return
            self._problems = {name: why for name, why in self._problems.items() if name != of}
            if sentence:
                self._problems[of] = sentence
        self.changed()

    def changed(self) -> None:
        with self._lock:
            self.revision += 1
        self._on_change()

    def tick(self, count: int = 1) -> None:
        with self._lock:
            self.progress += count
            self._progressed = self._clock()
            self._touch_phases()

    def touch(self) -> None:
        """Restart the deadlines of the open phases, without progress."""
        with self._lock:
            self._touch_phases()
        self.changed()

    @contextmanager
    def phase(self, name: str, at_most_s: float | None, *, announce: Callable[[], None]) -> Iterator[None]:
        """Open a phase. `announce` is called before its body runs."""
        around = _current.get()
        phase = Phase(name, at_most_s, around, self._clock())
        number = next(self._ids)
        with self._lock:
            self._phases[number] = phase
            if around is not None:
                around.inside += 1
        _current.set(phase)
        self.changed()
        announce()
        try:
            yield
        finally:
            # Not ContextVar.reset: a generator may be closed in another context than the one it started in.
            _current.set(around)
            with self._lock:
                del self._phases[number]
                if around is not None:
                    around.inside -= 1
            self.changed()

    @contextmanager
    def wait(self, what: str, *, on: str, at_most_s: float) -> Iterator[None]:
        number = next(self._ids)
        opened = _OpenWait(on or what, what, self._clock(), at_most_s)
        with self._lock:
            self._waits[number] = opened
        self.changed()
        try:
            yield
        finally:
            with self._lock:
                del self._waits[number]
            self.changed()

    def publish_waits(self, waits: Iterable[Wait]) -> None:
        foreign, now = tuple(waits), self._clock()
        with self._lock:
            if _same(self._foreign, foreign, now - self._foreign_at):
                return
            self._foreign, self._foreign_at = foreign, now
        self.changed()

    def metrics(self, values: Mapping[str, float]) -> None:
        with self._lock:
            first = not self._metrics
            self._metrics |= {name: float(value) for name, value in values.items()}
        if first:
            self._on_change()

    def take_metrics(self) -> dict[str, float]:
        """Return the values written since the last call."""
        with self._lock:
            taken, self._metrics = self._metrics, {}
        return taken

    @property
    def has_metrics(self) -> bool:
        return bool(self._metrics)

    def report(self, now: float, *, paused: bool, draining: bool, knobs: dict[str, KnobValue]) -> UnitReport:
        """Return the state as it is now. A request for more time is reported once."""
        with self._lock:
            phase = self._reported_phase()
            # A dict keeps the order of insertion, so the oldest waits come first.
            oldest = list(itertools.islice(self._waits.values(), MOST_WAITS))
            number = len(self._waits)
            own = (Wait(wait.on, wait.what, max(0.0, now - wait.begun), _finite(wait.at_most_s)) for wait in oldest)
            extend, self._extend_stop_s = self._extend_stop_s, None
            report = UnitReport(
                ready=self.ready,
                status=self.status,
                phase=phase.name if phase else "",
                phase_age_s=max(0.0, now - phase.touched) if phase else 0.0,
                at_most_s=_finite(phase.at_most_s) if phase else None,
                progress=self.progress,
                progress_age_s=max(0.0, now - self._progressed),
                weights=self.weights,
                serving=self.serving,
                problems=self._problems,
                incomplete=self.incomplete,
                parts=self.parts,
                paused=paused,
                draining=draining,
                knobs=knobs,
                extend_stop_s=extend,
                waits=(*own, *_grown(self._foreign, now - self._foreign_at)),
            )
        if number > MOST_WAITS:
            return _with_count(report, number)
        return report

    def _touch_phases(self) -> None:
        now = self._clock()
        phase = _current.get()
        while phase is not None:
            phase.touched = now
            phase = phase.around

    def _reported_phase(self) -> Phase | None:
        innermost = [phase for phase in self._phases.values() if phase.inside == 0]
        return min(innermost, key=lambda phase: phase.due, default=None)


def _finite(at_most_s: float | None) -> float | None:
    """A deadline that never comes is sent as none: messages contain finite numbers only."""
    return at_most_s if at_most_s is not None and math.isfinite(at_most_s) else None


def _with_count(report: UnitReport, number: int) -> UnitReport:
    count = f"{number} waits, the oldest {MOST_WAITS} listed"
    return msgspec.structs.replace(report, status=f"{report.status} ({count})" if report.status else count)


def _grown(waits: tuple[Wait, ...], by_s: float) -> Iterator[Wait]:
    return (msgspec.structs.replace(wait, age_s=wait.age_s + max(0.0, by_s)) for wait in waits)


def _same(before: tuple[Wait, ...], now: tuple[Wait, ...], between_s: float) -> bool:
    """Return whether nothing but time has changed."""
    return len(before) == len(now) and all(
        msgspec.structs.replace(old, age_s=new.age_s) == new and abs(old.age_s - new.age_s) <= AGE_NEWS_S
        for old, new in zip(_grown(before, between_s), now, strict=True)
    )
