"""Counts, latencies and samples of failures for every tool.

Invariants: memory does not grow with the number of calls; a quantile is off by at most one bucket (a quarter of its
value); samples name the calls, so that a person can jump to them.
"""

from __future__ import annotations

import math
from collections import Counter, deque

import msgspec

from agentrl.toolbox.answers import Answer

SAMPLES = 5
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
    """Failed calls by whose fault they were."""
    p50_s: float
    p95_s: float
    longest_s: float
    cut: int
    """Results that were too long."""
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


class Statistics:
    """All tools of a toolbox."""

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}
        self.calls = 0
        self.infrastructure = 0

    def add(self, tool: str, answer: Answer, *, call: str, session: str) -> None:
        known = self._tools.setdefault(tool, _Tool())
        self.calls += 1
        known.statuses[answer.status] += 1
        known.buckets[_bucket(answer.latency_s)] += 1
        known.longest_s = max(known.longest_s, answer.latency_s)
        known.cut += answer.left_out > 0
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

    def all(self) -> tuple[ToolStatistics, ...]:
        return tuple(_told(name, tool) for name, tool in sorted(self._tools.items()))


def _told(name: str, tool: _Tool) -> ToolStatistics:
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
    """The upper end of the bucket that the quantile falls into, but never more than was seen."""
    wanted = share * tool.buckets.total()
    counted = 0
    for bucket in sorted(tool.buckets):
        counted += tool.buckets[bucket]
        if counted >= wanted:
            return float(min(_FLOOR_S * 2 ** (bucket / _PER_DOUBLING), tool.longest_s))
    return 0.0
