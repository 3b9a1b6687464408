"""Spans of the acts of host agents on processes: from the order of the coordinator to the report of the host.

Invariants:
- The clock is that of the coordinator, so hosts with a wrong clock have right spans.
- A span belongs to the trace of the operation that caused it; a restart that no operation caused has its own trace.
- Spans that are never reported, because their host is lost, are dropped.
"""

from __future__ import annotations

import signal
from collections import OrderedDict
from typing import NamedTuple

from agentrl.protocol import messages
from agentrl.supervision import instructions as do
from agentrl.tracing import spans, trace_context
from agentrl.tracing.trace_context import TraceContext

MOST_OPEN = 2_000
_NO_END = (signal.SIGCONT, signal.SIGUSR2)


class _Ordered(NamedTuple):
    host: str
    at: float
    trace: TraceContext | None


class ProcessSpans:
    def __init__(self) -> None:
        self._spawns: OrderedDict[tuple[str, int], _Ordered] = OrderedDict()
        self._stops: OrderedDict[tuple[str, int], _Ordered] = OrderedDict()

    def spawning(self, host: str, unit: str, incarnation: int, trace: TraceContext | None, now: float) -> None:
        if spans.exporting():
            _open(self._spawns, (unit, incarnation), _Ordered(host, now, trace))

    def ordered(self, instruction: do.Instruction, host: str, trace: TraceContext | None, now: float) -> None:
        """Handles an order. The first order that ends an incarnation begins the span of its stop."""
        if not spans.exporting():
            return
        match instruction:
            case do.Signal(signal=number) if number in _NO_END:
                return
            case do.SendToUnit(message=messages.CancelDrain()):
                self._stops.pop((instruction.unit, instruction.incarnation), None)
                return
            case do.SendToUnit(message=messages.Drain()) | do.Signal() | do.KillTree():
                _open(self._stops, (instruction.unit, instruction.incarnation), _Ordered(host, now, trace))

    def reported(self, message: messages.FromHost, now: float) -> None:
        match message:
            case messages.Spawned(unit, incarnation):
                _close("spawn", self._spawns, (unit, incarnation), now)
            case messages.SpawnFailed(unit, incarnation):
                _close("spawn", self._spawns, (unit, incarnation), now, error="it cannot be started")
            case messages.GroupEmpty(unit, incarnation, swept):
                _close("stop", self._stops, (unit, incarnation), now, killed=len(swept))
            case messages.Exited(unit, incarnation) if message.group_empty:
                _close("stop", self._stops, (unit, incarnation), now)


def _open(opened: OrderedDict[tuple[str, int], _Ordered], key: tuple[str, int], order: _Ordered) -> None:
    opened.setdefault(key, order)
    if len(opened) > MOST_OPEN:
        opened.popitem(last=False)


def _close(
    what: str,
    opened: OrderedDict[tuple[str, int], _Ordered],
    key: tuple[str, int],
    now: float,
    *,
    error: str = "",
    **numbers: int,
) -> None:
    order = opened.pop(key, None)
    if order is None:
        return
    unit, incarnation = key
    of = {f"agentrl__{name}": number for name, number in numbers.items()}
    spans.record(
        f"{what} {unit}",
        trace_context.new() if order.trace is None else order.trace.child(),
        parent="" if order.trace is None else order.trace.span_id,
        began_s=order.at,
        ended_s=now,
        error=error,
        host__name=order.host,
        agentrl__incarnation=f"{unit}.{incarnation}",
        **of,
    )
