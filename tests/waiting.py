"""Waiting in tests: a condition is polled until it holds, never slept for.

Invariants: whoever waits gives a deadline, and a wait that fails says what it waited for and what it saw last. A
deadline only rules hunger for processor time away; how fast something is belongs into the benchmarks. A condition may
read what is not there yet: a row, a field that is left out, one of none. What the product raises is told at once.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0
"""How long hunger for processor time may last on a busy machine. A wait that ends early costs nothing."""
_NOT_THERE = (LookupError, AttributeError, TypeError, ValueError, StopIteration, RuntimeError, FileNotFoundError)
"""What looking for something raises before it is there; the RuntimeError is what Python makes of a StopIteration in a
coroutine."""
_ROOT = Path(__file__).parents[1]
_PRODUCT = tuple(f"{_ROOT / room}/" for room in ("agentrl", "assets", "daemons", "tui"))


def eventually(
    predicate: Callable[[], T | None], *, within_s: float = PATIENCE_S, every_s: float = 0.02, what: str = ""
) -> T:
    """The first truthy answer of `predicate`; AssertionError if there was none within the time.

    An AssertionError raised inside `predicate` counts as "not yet" and is shown if the time runs out, and so does what
    the predicate itself raises because something is not there yet.
    """
    deadline = time.monotonic() + within_s
    while True:
        seen: object
        try:
            answer = predicate()
            if answer:
                return answer
            seen = answer
        except (AssertionError, *_NOT_THERE) as not_yet:
            if _is_a_fault(not_yet):
                raise
            seen = not_yet
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, what, within_s, seen)) from (
                seen if isinstance(seen, Exception) else None
            )
        time.sleep(every_s)


async def aeventually(
    predicate: Callable[[], T | Awaitable[T | None] | None],
    *,
    within_s: float = PATIENCE_S,
    every_s: float = 0.02,
    what: str = "",
) -> T:
    """Like `eventually`, without blocking the loop; `predicate` may be a plain or an async function."""
    deadline = time.monotonic() + within_s
    while True:
        seen: object
        try:
            answer = predicate()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
            seen = answer
        except (AssertionError, *_NOT_THERE) as not_yet:
            if _is_a_fault(not_yet):
                raise
            seen = not_yet
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, what, within_s, seen)) from (
                seen if isinstance(seen, Exception) else None
            )
        await asyncio.sleep(every_s)


def _too_late(predicate: object, what: str, within_s: float, seen: object) -> str:
    name = what or getattr(predicate, "__name__", repr(predicate))
    return f"{name}: not within {within_s:g} s; last seen: {seen!r}"


def _is_a_fault(error: Exception) -> bool:
    """Raised by the product, or on its way through it. No assertion is."""
    if isinstance(error, AssertionError):
        return False
    if isinstance(error, RuntimeError) and not isinstance(error.__cause__, StopIteration):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.startswith(_PRODUCT) for frame, _ in frames)
