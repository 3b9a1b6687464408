"""Waiting in tests: poll a condition until it holds; never sleep.

Invariants:
- Every wait has a deadline, and a failed wait names its condition and the last value.
- The deadline only allows for a busy machine; speed is measured by the benchmarks.
- A look that takes long is repeated less often, so waiting takes no more than about a tenth of a processor.
- A condition may read missing things, such as a row or a field. Errors of the product are raised at once.
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
"""Long, for a busy machine; a wait ends when its condition holds."""
LOOK_EVERY_S = 0.02
LONGEST_PAUSE_S = 0.25
_NOT_THERE = (LookupError, AttributeError, TypeError, ValueError, StopIteration, RuntimeError, FileNotFoundError)
"""Errors of a condition that reads a missing thing; a StopIteration in a coroutine becomes a RuntimeError."""
_ROOT = Path(__file__).parents[1]
_PRODUCT = tuple(f"{_ROOT / room}/" for room in ("agentrl", "assets", "daemons", "tui"))


def eventually(
    predicate: Callable[[], T | None], *, within_s: float = PATIENCE_S, every_s: float = LOOK_EVERY_S, what: str = ""
) -> T:
    """The first truthy answer of `predicate`. Raises AssertionError after the deadline.

    An AssertionError of `predicate`, or its error because something is missing, counts as "not yet".
    """
    deadline = time.monotonic() + within_s
    while True:
        seen: object
        begun_at = time.monotonic()
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
        time.sleep(_pause_s(every_s, time.monotonic() - begun_at))


async def aeventually(
    predicate: Callable[[], T | Awaitable[T | None] | None],
    *,
    within_s: float = PATIENCE_S,
    every_s: float = LOOK_EVERY_S,
    what: str = "",
) -> T:
    """Like `eventually`, without blocking the loop; `predicate` may be a plain or an async function."""
    deadline = time.monotonic() + within_s
    while True:
        seen: object
        begun_at = time.monotonic()
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
        await asyncio.sleep(_pause_s(every_s, time.monotonic() - begun_at))


def _pause_s(every_s: float, look_s: float) -> float:
    """A caller that asks for shorter pauses looks for something that does not last."""
    return every_s if every_s < LOOK_EVERY_S else max(every_s, min(LONGEST_PAUSE_S, 9 * look_s))


def _too_late(predicate: object, what: str, within_s: float, seen: object) -> str:
    name = what or getattr(predicate, "__name__", repr(predicate))
    return f"{name}: not within {within_s:g} s; last seen: {seen!r}"


def _is_a_fault(error: Exception) -> bool:
    """Whether the error passed through the product; assertions never count."""
    if isinstance(error, AssertionError):
        return False
    if isinstance(error, RuntimeError) and not isinstance(error.__cause__, StopIteration):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.startswith(_PRODUCT) for frame, _ in frames)
