"""Waiting in tests: a condition is polled until it holds, never slept for.

Invariants: whoever waits gives a deadline, and a wait that fails says what it waited for and what it saw last. A
deadline only rules hunger for processor time away; how fast something is belongs into the benchmarks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0
"""How long hunger for processor time may last on a busy machine. A wait that ends early costs nothing."""


def eventually(
    predicate: Callable[[], T | None], *, within_s: float = PATIENCE_S, every_s: float = 0.02, what: str = ""
) -> T:
    """The first truthy answer of `predicate`; AssertionError if there was none within the time.

    An AssertionError raised inside `predicate` counts as "not yet" and is shown if the time runs out.
    """
    deadline = time.monotonic() + within_s
    while True:
        seen: object
        try:
            answer = predicate()
            if answer:
                return answer
            seen = answer
        except AssertionError as not_yet:
            seen = not_yet
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, what, within_s, seen))
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
        except AssertionError as not_yet:
            seen = not_yet
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, what, within_s, seen))
        await asyncio.sleep(every_s)


def _too_late(predicate: object, what: str, within_s: float, seen: object) -> str:
    name = what or getattr(predicate, "__name__", repr(predicate))
    return f"{name}: not within {within_s:g} s; last seen: {seen!r}"
