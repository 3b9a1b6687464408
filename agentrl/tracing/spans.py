"""Spans: work with a beginning and an end, in one process, as a part of a trace.

Invariants:
- Without an exporter `span` compares one variable and measures nothing.
- Spans of a trace that is not sampled are held until its root span ends: if one of them failed, or the root took longer
  than nearly all of its kind before it, the whole trace is exported nevertheless.
- The process of the root span decides. Other processes hold their spans until that process tells them to export, or
  until newer spans need the space.
- What is held is bounded. An exporter never blocks and never raises.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal

from agentrl.tracing import log_format, trace_context
from agentrl.tracing.trace_context import TraceContext

Kind = Literal["internal", "client", "server"]
Value = str | int | float | bool
MOST_HELD = 10_000
"""Spans of traces that are not sampled, until it is known whether they are kept. Each takes about 1 KiB."""
MOST_OF_TRACE = 1_000
MOST_REMEMBERED = 1_000
"""How many kept traces are remembered, because more of their spans may follow."""
MOST_KINDS = 256
COMPARED = 200
"""How many root spans of its kind the time of one is compared with ..."""
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
    """The kind of failure that ended it, in a word, never text of a model or a tool."""
    attributes: dict[str, Value] = field(default_factory=dict)

    def set(self, **attributes: Value) -> None:
        """Add attributes. `a__b` is the attribute `a.b`."""
        self.attributes |= {name.replace("__", "."): value for name, value in attributes.items()}

    def fail(self, why: str) -> None:
        self.error = why


class _Unset(Span):
    """Ignores all attributes."""

    def set(self, **attributes: Value) -> None:
        pass

    def fail(self, why: str) -> None:
        pass


_UNSEEN = _Unset("", TraceContext("0" * 32, "0" * 16, False), "", "internal", 0)
"""What `span` returns while nothing is exported."""
_OFF = contextlib.nullcontext(_UNSEEN)


Export = Callable[[Span], None]
_export: Export | None = None


class _Held:
    """The spans of a trace that is not sampled, and the peers to which the trace was sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.peers: set[Hashable] = set()


class TailSampler:
    """Decides which traces that are not sampled are exported nevertheless, whole and at their end."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._count = 0
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._unannounced: dict[str, set[Hashable]] = {}
        self._times: dict[str, deque[int]] = {}

    def take(self, span: Span, kind: str = "") -> list[Span]:
        """Returns the spans to export now. `kind` is that of a root span."""
        trace = span.context.trace_id
        if span.parent:
            if trace in self._kept:
                return [span]
            held = self._of(trace)
            if len(held.spans) < MOST_OF_TRACE:
                held.spans.append(span)
                self._count += 1
            self._make_room()
            return []
        held = self._pop(trace)
        failed = bool(span.error) or any(one.error for one in held.spans)
        # Counts its time in any case.
        if not self.is_slow(span, kind) and not failed:
            return []
        self._remember(trace)
        if held.peers:
            self._unannounced[trace] = held.peers
        return [*held.spans, span]

    def sent_to(self, trace: str, peer: Hashable) -> None:
        self._of(trace).peers.add(peer)

    def keep(self, traces: Iterable[str]) -> list[Span]:
        """Keep these traces, because the process of their root does. Returns the spans to export now."""
        spans: list[Span] = []
        for trace in traces:
            self._remember(trace)
            spans += self._pop(trace).spans
        return spans

    def unannounced(self) -> dict[str, set[Hashable]]:
        """The traces that were kept since the last time, with the peers that have parts of them."""
        found, self._unannounced = self._unannounced, {}
        return found

    def is_slow(self, root: Span, kind: str) -> bool:
        """Whether it took longer than nearly all of its kind. Counts its time."""
        took = root.ended_ns - root.began_ns
        times = self._times.get(kind)
        if times is None:
            if len(self._times) >= MOST_KINDS:
                self._times.clear()
            times = self._times[kind] = deque(maxlen=COMPARED)
        known = sorted(times)
        times.append(took)
        return len(known) >= LEAST_COMPARED and took > known[int(len(known) * (1 - SLOWEST_SHARE))]

    def _of(self, trace: str) -> _Held:
        held = self._held.setdefault(trace, _Held())
        self._held.move_to_end(trace)
        return held

    def _pop(self, trace: str) -> _Held:
        held = self._held.pop(trace, None) or _Held()
        self._count -= len(held.spans)
        return held

    def _remember(self, trace: str) -> None:
        self._kept[trace] = None
        if len(self._kept) > MOST_REMEMBERED:
            self._kept.popitem(last=False)

    def _make_room(self) -> None:
        """Drops first the trace in which nothing has happened for the longest time."""
        while self._count > MOST_HELD or len(self._held) > MOST_HELD:
            self._pop(next(iter(self._held)))


_tail = TailSampler()


def set_exporter(export: Export | None) -> None:
    global _export, _tail
    _export = export
    _tail = TailSampler()


def exporting() -> bool:
    return _export is not None


def sent_to(peer: Hashable) -> None:
    """Note that the current trace continues in another process, which must be told if the trace is kept."""
    if _export is not None and (context := trace_context.current()) is not None and not context.sampled:
        _tail.sent_to(context.trace_id, peer)


def unannounced() -> dict[str, set[Hashable]]:
    """Traces that were kept at their end since the last call, with the peers that hold parts of them."""
    return _tail.unannounced()


def keep(traces: Iterable[str]) -> None:
    """Export the held spans of these traces, and their later spans."""
    for span in _tail.keep(traces):
        _export_kept(span)


def span(
    name: str, *, kind: Kind = "internal", root: TraceContext | None = None, like: str = "", **attributes: Value
) -> AbstractContextManager[Span]:
    """A part of the current trace, or with `root` the first span of a trace. An exception marks it as failed.

    Without a trace around it and without `root`, nothing is exported. `like`: a root span is slow if it is among those
    of this name and `like`.
    """
    if _export is not None:
        return _span(name, kind, root, like, attributes)
    # JSON log lines have the trace of an episode even if no spans are exported.
    return _only_the_trace(root) if root is not None and log_format.is_json() else _OFF


@contextlib.contextmanager
def _only_the_trace(root: TraceContext) -> Iterator[Span]:
    with trace_context.within(root):
        yield _UNSEEN


@contextlib.contextmanager
def _span(name: str, kind: Kind, root: TraceContext | None, like: str, attributes: dict[str, Value]) -> Iterator[Span]:
    around = None if root is not None else trace_context.current()
    context = root if root is not None else around.child() if around is not None else None
    if context is None:
        yield _UNSEEN
        return
    made = Span(name, context, around.span_id if around is not None else "", kind, time.time_ns())
    made.set(**attributes)
    try:
        with trace_context.within(context):
            yield made
    except BaseException as failed:
        made.error = made.error or type(failed).__name__
        raise
    finally:
        made.ended_ns = time.time_ns()
        _finished(made, f"{name} {like}")


def record(
    name: str, context: TraceContext, *, parent: str = "", began_s: float, ended_s: float, error: str = "", **of: Value
) -> None:
    """Record a span whose times are already known, in seconds since 1970."""
    if _export is None:
        return
    made = Span(name, context, parent, "internal", int(began_s * 1e9), int(ended_s * 1e9), error)
    made.set(**of)
    _finished(made)


def _finished(span: Span, kind: str = "") -> None:
    if _export is None:
        return
    if span.context.sampled:
        if not span.parent:
            _tail.is_slow(span, kind)
        _export(span)
        return
    for kept in _tail.take(span, kind):
        _export_kept(kept)


def _export_kept(span: Span) -> None:
    if _export is not None:
        _export(replace(span, context=replace(span.context, sampled=True)))
