"""Counts, latencies and sample failures of every tool.

Invariants:
- Memory does not grow with the number of calls.
- A quantile is off by at most one bucket (a quarter of its value); that of the last minute is exact.
- Samples have the ids of their calls.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agentrl.toolbox.api_messages import CallAnswer

SAMPLES = 5
RECENT_S = 60.0
RECENT_CALLS = 512
"""For each tool; enough for a quantile."""
JUDGED_FROM = 20
_SAMPLE_CHARS = 200
_PER_DOUBLING = 3
_FLOOR_S = 1e-4


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One call that failed."""

    call: str
    session: str
    status: str
    error_class: str
    content: str


class ToolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One tool since the toolbox started."""

    id: str
    calls: int
    statuses: dict[str, int]
    faults: dict[str, int]
    """Failed calls by fault."""
    p50_s: float
    p95_s: float
    longest_s: float
    cut: int
    """Results that were cut because they were too long."""
    samples: tuple[Sample, ...]
    """The newest failures, oldest first."""


class _Tool:
    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.buckets: Counter[int] = Counter()
        self.longest_s = 0.0
        self.cut = 0
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.recent: deque[_Call] = deque(maxlen=RECENT_CALLS)


class _Call(NamedTuple):
    at: float
    latency_s: float
    failed: bool


class Recent(NamedTuple):
    """One tool in the last minute."""

    calls: int
    per_s: float
    p95_s: float
    failures: float
    """Share of infrastructure failures; 0 for fewer than JUDGED_FROM calls."""


class ToolboxStatistics:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tools: dict[str, _Tool] = {}
        self.calls = 0
        self.infrastructure = 0

    def add(self, tool: str, answer: CallAnswer, *, call: str, session: str) -> None:
        known = self._tools.setdefault(tool, _Tool())
        self.calls += 1
        known.statuses[answer.status] += 1
        known.buckets[_bucket(answer.latency_s)] += 1
        known.longest_s = max(known.longest_s, answer.latency_s)
        known.cut += answer.left_out > 0
        known.recent.append(_Call(self._clock(), answer.latency_s, answer.error_class == "infrastructure"))
        if answer.error_class:
            self.infrastructure += answer.error_class == "infrastructure"
            known.faults[answer.error_class] += 1
            known.samples.append(
                Sample(
                    call=call,
                    session=session,
                    status=answer.status,
                    error_class=answer.error_class,
                    content=answer.content[:_SAMPLE_CHARS],
                )
            )

    def recent(self) -> dict[str, Recent]:
        """The last minute of every tool that was ever called."""
        since = self._clock() - RECENT_S
        lately = {name: [call for call in tool.recent if call.at >= since] for name, tool in self._tools.items()}
        return {name: _recent(calls, self._clock()) for name, calls in sorted(lately.items())}

    def all(self) -> tuple[ToolStatistics, ...]:
        return tuple(_summary(name, tool) for name, tool in sorted(self._tools.items()))


def _recent(calls: list[_Call], now: float) -> Recent:
    if not calls:
        return Recent(0, 0.0, 0.0, 0.0)
    latencies = sorted(call.latency_s for call in calls)
    failed = sum(call.failed for call in calls) / len(calls) if len(calls) >= JUDGED_FROM else 0.0
    # For a busy tool only the newest calls are kept, so the rate follows from their span.
    span_s = RECENT_S if len(calls) < RECENT_CALLS else max(now - calls[0].at, 1e-3)
    p95_s = latencies[min(len(latencies) - 1, math.ceil(0.95 * len(latencies)) - 1)]
    return Recent(len(calls), len(calls) / span_s, p95_s, failed)


def _summary(name: str, tool: _Tool) -> ToolStatistics:
    return ToolStatistics(
        id=name,
        calls=tool.statuses.total(),
        statuses=dict(tool.statuses),
        faults=dict(tool.faults),
        p50_s=_quantile(tool, 0.5),
        p95_s=_quantile(tool, 0.95),
        longest_s=tool.longest_s,
        cut=tool.cut,
        samples=tuple(tool.samples),
    )


def _bucket(seconds: float) -> int:
    return math.ceil(_PER_DOUBLING * math.log2(max(seconds, _FLOOR_S) / _FLOOR_S))


def _quantile(tool: _Tool, share: float) -> float:
    """The upper end of the bucket of the quantile, at most the longest latency."""
    wanted = share * tool.buckets.total()
    counted = 0
    for bucket in sorted(tool.buckets):
        counted += tool.buckets[bucket]
        if counted >= wanted:
            return float(min(_FLOOR_S * 2 ** (bucket / _PER_DOUBLING), tool.longest_s))
    return 0.0
