"""Trace ids, as W3C Trace Context defines them.

Invariants:
- The ids are computed from the id of the operation or of the record, so every process computes the same ones.
- A trace from another process is used only if it is well-formed.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "traceparent"
VARIABLE = "AGENTRL_TRACEPARENT"
"""The variable that gives a unit the trace of the operation that started it."""
_PATTERN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ID = re.compile(r"[0-9a-f]{32}")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace; work that is done within it belongs to it."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    sampled: bool = True
    """Whether its spans are exported in any case."""

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def child(self) -> TraceContext:
        return TraceContext(self.trace_id, _random_span_id(), self.sampled)


_current: ContextVar[TraceContext | None] = ContextVar("trace", default=None)
_of_process: TraceContext | None = None


def current() -> TraceContext | None:
    return _current.get() or _of_process


@contextlib.contextmanager
def within(context: TraceContext | None) -> Iterator[None]:
    """Work and log lines in the body, and in tasks that begin there, belong to that span."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def of_process() -> TraceContext | None:
    return _of_process


def set_of_process(context: TraceContext | None) -> None:
    """Set the trace of all work in this process that has no trace of its own: while a unit starts, that of the
    operation that started it."""
    global _of_process
    _of_process = context


def of_operation(id: str) -> TraceContext:
    """The trace of an operation. It is the id itself if that has 32 hexadecimal digits, as ids from agentrl's clients
    do."""
    made = _derived(f"operation {id}", 1.0)
    return TraceContext(id, made.span_id) if _ID.fullmatch(id) else made


def new() -> TraceContext:
    return TraceContext(f"{_random.getrandbits(128) or 1:032x}", _random_span_id())


def of_record(run: str, record: str, share: float = 1.0) -> TraceContext:
    """The trace of a record. `share` of all records are sampled, chosen by their ids."""
    return _derived(f"record {run} {record}", share)


def parse(header: str) -> TraceContext | None:
    """None if the text is not a traceparent."""
    match = _PATTERN.fullmatch(header)
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return TraceContext(match[1], match[2], bool(int(match[3], 16) & _SAMPLED))


def _derived(text: str, share: float) -> TraceContext:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return TraceContext(digest[:32], digest[32:48], int(digest[48:56], 16) < share * 2**32)


def _random_span_id() -> str:
    return f"{_random.getrandbits(64) or 1:016x}"


_random = random.Random()
"""A separate generator, because a seed may fix the numbers of the global one."""
