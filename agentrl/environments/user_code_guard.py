"""Keeps the code of users from stopping the process that runs it.

Agent loops and scorers share an event loop with the episodes of others. A blocking call, an endless loop or `os._exit`
in one of them would end or delay all.

Invariants:
- Code that blocks the event loop for longer than a limit is interrupted by an exception at the line that it executes.
- `os._exit` and `os.abort` raise where code of a user calls them in this process; its children may end themselves.
- Nothing but the code of users is ever interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

from agentrl.environments import user_places
from agentrl.environments.user_places import Place
from agentrl.environments.user_tasks import BlockedError, UserExitError

BLOCKED_AT_MOST_S = 10.0
"""After this time the code is interrupted."""
LATE_S = 1.0
"""Code that holds up the others for longer than this is counted."""
_EVERY_S = 0.5
_LOOK_S = 0.02
MOST_INTERRUPTIONS = 5
"""Code that catches the interruption gets another one after the same time; after this many it counts as stuck."""
_SIGNAL = signal.SIGRTMIN + 7


class Late(NamedTuple):
    """Code of a user blocked the event loop."""

    place: Place
    seconds: float
    interrupted: bool


class LoopWatch:
    """Watches the event loop of this thread while it is entered."""

    def __init__(
        self,
        on_late: Callable[[Late], None] = lambda late: None,
        *,
        at_most_s: float | None = None,
        late_s: float = LATE_S,
        every_s: float = _EVERY_S,
        on_stuck: Callable[[Place | None], None] = lambda place: None,
    ) -> None:
        """`on_late` is called in the event loop, `on_stuck` in a thread of its own."""
        self._on_late = on_late
        self._at_most_s = BLOCKED_AT_MOST_S if at_most_s is None else at_most_s
        self._late_s = late_s
        self._every_s = every_s
        self._on_stuck = on_stuck
        self._interrupting = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch the event loop", daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._may_interrupt = threading.current_thread() is threading.main_thread()
        if self._may_interrupt:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()
        if self._may_interrupt:
            signal.signal(_SIGNAL, self._before)

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._ask()
            except RuntimeError:
                return  # The loop is closed.

    def _ask(self) -> None:
        answered = threading.Event()
        asked_at = time.monotonic()
        self._loop.call_soon_threadsafe(answered.set)
        if answered.wait(self._late_s):
            return
        place = user_places.of_frame(sys._current_frames().get(self._watched))
        interrupt_at, interruptions = asked_at + self._at_most_s, 0
        while not answered.wait(_LOOK_S) and not self._stopped.is_set():
            if self._may_interrupt and time.monotonic() >= interrupt_at:
                interrupt_at, interruptions = time.monotonic() + self._at_most_s, interruptions + 1
                if interruptions == MOST_INTERRUPTIONS:
                    self._on_stuck(place)
                self._interrupting = True
                signal.pthread_kill(self._watched, _SIGNAL)
        self._interrupting = False
        if place is not None:
            late = Late(place, time.monotonic() - asked_at, interruptions > 0)
            self._loop.call_soon_threadsafe(self._on_late, late)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        place = user_places.of_frame(frame)
        if self._interrupting and place is not None:
            self._interrupting = False
            raise BlockedError(f"it blocks the event loop for more than {self._at_most_s:g} s")


@contextlib.contextmanager
def no_exit() -> Iterator[None]:
    """Code of users cannot end this process by `os._exit` or `os.abort`."""
    here = os.getpid()
    before = {name: getattr(os, name) for name in ("_exit", "abort")}

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(*status: int) -> None:
            place = user_places.of_frame(sys._getframe(1))
            if os.getpid() != here or place is None:
                before[name](*status)
            raise UserExitError(f"it called os.{name}({', '.join(map(str, status))})")

        return refuse

    for name in before:
        setattr(os, name, refusing(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)


@contextlib.asynccontextmanager
async def watched(on_late: Callable[[Late], None] = lambda late: None) -> AsyncIterator[None]:
    """Enters both guards, for a process that runs episodes."""
    with LoopWatch(on_late), no_exit():
        yield
