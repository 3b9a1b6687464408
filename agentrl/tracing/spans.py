"""Spans: work with a beginning and an end, in one process, as a part of a trace.

Invariants:
- Without an exporter `span` compares one variable and measures nothing.
- A span whose trace is not sampled is kept only until the root span of its trace ends in this process: if that failed,
  or took longer than nearly all before it, the spans of the trace in this process are exported nevertheless.
- An exporter never blocks and never raises.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal

from agentrl.tracing import log_format, trace_context
from agentrl.tracing.trace_context import TraceContext

Kind = Literal["internal", "client", "server"]
Value = str | int | float | bool
MOST_HELD = 2_000
"""Spans of traces that are not sampled, until it is known whether they are kept."""
COMPARED = 200
"""How many root spans the time of one is compared with ..."""
LEAST_COMPARED = 50
SLOWEST_SHARE = 0.02
"""... and the share of them that counts as slow."""


@dataclass(slots=True)
class Span:
    name: str
    context: TraceContext
    parent: str
    """The id of the span around it; empty for a root."""
    kind: Kind
    began_ns: int
    ended_ns: int = 0
    error: str = ""
    """Why it failed, in a word or a sentence without anything that a model or a tool wrote."""
    attributes: dict[str, Value] = field(default_factory=dict)

    def set(self, **attributes: Value) -> None:
        """Add attributes. `a__b` is the attribute `a.b`."""
        self.attributes |= {name.replace("__", "."): value for name, value in attributes.items()}

    def fail(self, why: str) -> None:
        self.error = why


class _Unset(Span):
    """Takes attributes and keeps none."""

    def set(self, **attributes: Value) -> None:
        pass

    def fail(self, why: str) -> None:
        pass


_UNSEEN = _Unset("", TraceContext("0" * 32, "0" * 16, False), "", "internal", 0)
"""What `span` gives while nothing is exported."""
_OFF = contextlib.nullcontext(_UNSEEN)


Export = Callable[[Span], None]
_export: Export | None = None


class TailSampler:
    """Decides which traces that are not sampled are exported nevertheless: by their root span."""

    def __init__(self) -> None:
        self._held: dict[str, list[Span]] = {}
        self._count = 0
        self._times: deque[int] = deque(maxlen=COMPARED)

    def begin(self, trace_id: str) -> None:
        self._held.setdefault(trace_id, [])

    def take(self, span: Span) -> list[Span]:
        """Returns the spans to export now."""
        if span.parent:
            held = self._held.get(span.context.trace_id)
            if held is not None and self._count < MOST_HELD:
                held.append(span)
                self._count += 1
            return []
        held = self._held.pop(span.context.trace_id, [])
        self._count -= len(held)
        return [*held, span] if self.is_remarkable(span) else []

    def is_remarkable(self, root: Span) -> bool:
        """Whether it failed or is slow. Counts its time."""
        took = root.ended_ns - root.began_ns
        known = sorted(self._times)
        self._times.append(took)
        slow = len(known) >= LEAST_COMPARED and took > known[int(len(known) * (1 - SLOWEST_SHARE))]
        return bool(root.error) or slow


_tail = TailSampler()


def set_exporter(export: Export | None) -> None:
    global _export, _tail
    _export = export
    _tail = TailSampler()


def exporting() -> bool:
    return _export is not None


def span(
    name: str, *, kind: Kind = "internal", root: TraceContext | None = None, **attributes: Value
) -> AbstractContextManager[Span]:
    """A part of the current trace, or with `root` the first span of a trace. An exception marks it as failed.

    Without a trace around it and without `root`, nothing is exported.
    """
    if _export is not None:
        return _span(name, kind, root, attributes)
    # Log lines as JSON have the trace of an episode also where no spans are exported.
    return _only_the_trace(root) if root is not None and log_format.is_json() else _OFF


@contextlib.contextmanager
def _only_the_trace(root: TraceContext) -> Iterator[Span]:
    with trace_context.within(root):
        yield _UNSEEN


@contextlib.contextmanager
def _span(name: str, kind: Kind, root: TraceContext | None, attributes: dict[str, Value]) -> Iterator[Span]:
    around = None if root is not None else trace_context.current()
    context = root if root is not None else around.child() if around is not None else None
    if context is None:
        yield _UNSEEN
        return
    made = Span(name, context, around.span_id if around is not None else "", kind, time.time_ns())
    made.set(**attributes)
    if root is not None and not context.sampled:
        _tail.begin(context.trace_id)
    try:
        with trace_context.within(context):
            yield made
    except BaseException as failed:
        made.error = made.error or type(failed).__name__
        raise
    finally:
        made.ended_ns = time.time_ns()
        _finished(made)


def record(
    name: str, context: TraceContext, *, parent: str = "", began_s: float, ended_s: float, error: str = "", **of: Value
) -> None:
    """A span whose times are known already, in seconds since 1970."""
    if _export is None:
        return
    made = Span(name, context, parent, "internal", int(began_s * 1e9), int(ended_s * 1e9), error)
    made.set(**of)
    _finished(made)


def _finished(span: Span) -> None:
    if _export is None:
        return
    if span.context.sampled:
        if not span.parent:
            _tail.is_remarkable(span)
        _export(span)
        return
    for kept in _tail.take(span):
        _export(replace(kept, context=replace(kept.context, sampled=True)))
