"""Tracks the steps of trainers, and finds trainers without a step for longer than their pace explains.

Invariants:
- Time in which a trainer is not supposed to take steps (paused, not ready, only evaluations left) never counts.
- Each trainer has its own pace, which survives its incarnations.
- While no pace is known, a run in which nothing changes counts as standing still much earlier than one that samples.
- Times are monotonic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from agentrl.formatting.amounts import counted

LEAST_S = 60.0
PACES = 10
"""A step is late after this multiple of the usual time between two steps, but not before `LEAST_S`."""
UNKNOWN_S = 900.0
"""The limit until the pace is known, for a run that produces records or tokens."""
NOTHING_MOVES_S = 180.0
"""The limit until the pace is known, for a run in which nothing changes."""
REMEMBERED = 20
NEEDED = 3


@dataclass(frozen=True, slots=True)
class StandingStill:
    """A trainer without a step for too long."""

    unit: str
    for_s: float
    usual_s: float
    """The usual time between two steps; 0 if it is not known."""
    step: float | None
    """The last one."""
    stage: str = ""
    """The stage before the step that has no result."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The state of the pipeline that leads to a step, by the reports of all units."""

    engines: int = 0
    serving: int = 0
    """Engines with a version of the weights."""
    running: int = 0
    """Records that samplers work on."""
    under_way: int = 0
    """Admitted records that are not done."""
    ready: int = 0
    """Records that are done and not yet trained."""
    works: bool = False
    """Whether an engine loads or generates, a tool runs, or the trainer computes."""

    def stage(self) -> str:
        """A sentence about the first stage that has no result yet."""
        if self.ready:
            return f"the trainer waits with {counted(self.ready, 'ready records')}, and {self.running} are sampled"
        if self.engines and not self.serving:
            return "no engine serves a version"
        if self.running:
            return f"{counted(self.running, 'records')} are sampled, and none is done"
        if self.under_way:
            return f"no sampler claims a record, and {counted(self.under_way, 'records')} are admitted"
        return "no record is admitted"


@dataclass(slots=True)
class _Trainer:
    since: float
    """The time of the last step, or the later time from which it could take steps again."""
    moved_at: float = 0.0
    """The last time that the pipeline changed."""
    pipeline: Pipeline | None = None
    first_s: float = 0.0
    """The time that the first step took; 0 if it was not seen."""
    step: float | None = None
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    works: bool = False
    whole: bool = False
    """Whether the present gap began with a step."""

    @property
    def usual_s(self) -> float:
        """The usual time between steps: the median, or the longest so far until there are enough."""
        if len(self.gaps_s) >= NEEDED:
            return median(self.gaps_s)
        return max((self.first_s, *self.gaps_s))

    def limit_s(self, now: float) -> float:
        if len(self.gaps_s) >= NEEDED:
            return max(LEAST_S, PACES * self.usual_s)
        if self.usual_s:
            return min(UNKNOWN_S, max(LEAST_S, PACES * self.usual_s))
        nothing_moves = self.pipeline is not None and now - self.moved_at > NOTHING_MOVES_S
        return NOTHING_MOVES_S if nothing_moves else UNKNOWN_S


class ProgressTracker:
    def __init__(self) -> None:
        self._trainers: dict[str, _Trainer] = {}

    def observe(
        self, unit: str, step: float | None, now: float, *, works: bool, pipeline: Pipeline | None = None
    ) -> None:
        """Takes in the state of a trainer. `works`: the next step needs only data and time."""
        known = self._trainers.setdefault(unit, _Trainer(now))
        if pipeline is not None and (pipeline.works or pipeline != known.pipeline):
            known.pipeline, known.moved_at = pipeline, now
        if not works or not known.works:
            known.since, known.works, known.whole = now, works, False
        if step is not None and step != known.step:
            if known.step is not None and known.whole:
                # A coordinator that was busy may see several steps at once.
                known.gaps_s.append((now - known.since) / max(1.0, step - known.step))
            elif known.step is None and known.works:
                known.first_s = now - known.since
            known.since, known.step, known.whole = now, step, True

    def standing_still(self, now: float) -> Iterator[StandingStill]:
        for unit, known in self._trainers.items():
            if known.works and now - known.since > known.limit_s(now):
                stage = known.pipeline.stage() if known.pipeline else ""
                yield StandingStill(unit, now - known.since, known.usual_s, known.step, stage)

    def keep(self, units: set[str]) -> None:
        """Forgets all other trainers."""
        self._trainers = {name: known for name, known in self._trainers.items() if name in units}
