"""Tasks that the code of a user begins in an episode.

Invariants:
- None of them outlives its episode, however it ended.
- What would end the event loop (`SystemExit`, `KeyboardInterrupt`) ends only the task that raised it.
- A CancelledError that nothing caused is an error of the code that raised it, and not the end of what runs it.
- A task that agentrl or a library begins for its own use is left alone: several episodes may share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar
from typing import Any

from agentrl.environments import user_places
from agentrl.environments.user_places import Place

ENDS_WITHIN_S = 2.0
"""A cancelled task that has not ended after this time is abandoned."""


class UserExitError(Exception):
    """Code of a user tried to end the process that runs it."""


class UncancelledError(Exception):
    """Code of a user raised CancelledError although nothing cancelled it."""


class BlockedError(BaseException):
    """Code of a user blocked the event loop. No `except Exception` of that code can take it for its own."""


FATAL = (SystemExit, KeyboardInterrupt, BlockedError)
"""What code of a user may raise besides `Exception`; it ends one episode, or leaves it unscored."""


def uncancelled(raised: asyncio.CancelledError) -> UncancelledError:
    """The error of code that awaited, for example, a task that it had cancelled itself. Raises what is given if it
    cancels the task that runs here."""
    mine = asyncio.current_task()
    if mine is not None and mine.cancelling():
        raise raised
    wrong = UncancelledError("it raised CancelledError although nothing cancelled it")
    return wrong.with_traceback(raised.__traceback__)


class UserTasks:
    """The asyncio tasks that the code of a user creates in one episode."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], Place] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Tasks that are created inside belong to this episode."""
        before = _own.set(self)
        try:
            yield
        finally:
            _own.reset(before)

    def add(self, task: asyncio.Task[Any], place: Place) -> None:
        self._tasks[task] = place
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    @property
    def left(self) -> list[Place]:
        """Where the tasks that have not ended were created."""
        return list(self._tasks.values())

    async def end(self) -> list[Place]:
        """Cancels them; returns where those were created that do not end."""
        left = dict(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=ENDS_WITHIN_S)
        return [place for task, place in left.items() if not task.done()]


_own: ContextVar[UserTasks | None] = ContextVar("tasks of the episode", default=None)


def install() -> None:
    """Installs the task factory in the running event loop."""
    asyncio.get_running_loop().set_task_factory(_make)


def _make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    own = _own.get()
    place = None if own is None else user_places.creating(sys._getframe(1))
    if own is None or place is None or not asyncio.iscoroutine(work):
        return asyncio.Task(work, loop=loop, **options)
    task: asyncio.Task[Any] = asyncio.Task(without_exit(work), loop=loop, **options)
    task.add_done_callback(lambda _: work.close())  # A task that was cancelled at once never began its coroutine.
    own.add(task, place)
    return task


async def without_exit(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of code that must not end the process."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as left:
        raise UserExitError(f"it raised {type(left).__name__}") from left
