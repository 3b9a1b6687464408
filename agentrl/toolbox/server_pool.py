"""The processes of one tool server that each serve one session: some are ready, the others are in use.

Invariants:
- A process serves one session and is then ended, unless it got no call.
- Sessions get processes in the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque

import psutil

from agentrl.errors import AgentrlError
from agentrl.policies.warm_pool import Demand, wanted_ready
from agentrl.toolbox.api_messages import QuotaError, UnavailableError
from agentrl.toolbox.connection_starts import Connect, ConnectionStarter, StarterState, does_not_serve, start_permit
from agentrl.toolbox.mcp_connection import Connection

log = logging.getLogger("toolbox")
COMES_AGAIN_S = 10.0
"""A session that was refused is requested again within this time."""
SIZED_EVERY_S = 5.0
"""How often a pool without sessions shrinks."""


class OwnProcesses:
    """Processes for sessions that replay calls on a `process` server, separate from the pool, and at most as many."""

    def __init__(self, connect: Connect, gate: asyncio.Semaphore, size: int, *, within_s: float) -> None:
        self._connect = connect
        self._gate = gate
        self._within_s = within_s
        self._free = asyncio.Semaphore(size)
        self._ending: set[asyncio.Task[None]] = set()

    async def take(self, wait_s: float) -> Connection:
        """Raises UnavailableError or QuotaError."""
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise QuotaError(
                "Replays and programs outside of the run use all processes beside the pool.", retry_after_s=1.0
            ) from None
        try:
            async with start_permit(self._gate):
                connection = self._connect()
                await connection.open(self._within_s)
        except AgentrlError as failed:
            self._free.release()
            raise UnavailableError(failed.message, retry_after_s=1.0) from None
        except BaseException:
            self._free.release()
            raise
        return connection

    def give_back(self, connection: Connection) -> None:
        self._free.release()
        task = asyncio.create_task(connection.close(), name="end a process that replayed a call")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def end(self) -> None:
        """Wait until all of them have ended."""
        while self._ending:
            await asyncio.wait(self._ending)


class ProcessPool(StarterState):
    """A process for each session of a `process` server, started in advance."""

    def __init__(self, starter: ConnectionStarter, size: int) -> None:
        super().__init__(starter)
        self._size = size
        self._idle: deque[Connection] = deque()
        self._taken: set[Connection] = set()
        self._ending: set[Connection] = set()
        self._waiting: deque[asyncio.Future[Connection]] = deque()
        self._changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._coming = 0
        self._demand = Demand.at_start(size, time.monotonic())
        self._start_s = 1.0
        self._process_bytes = 0
        self.waited = 0
        """Sessions that found no process ready."""
        self._short_since = self._refused_at = float("-inf")
        self.starts = 0

    @property
    def serving(self) -> bool:
        # Between two processes the server still serves if the last start succeeded.
        return self.starts > 0 and (not self.why or any(not each.gone.is_set() for each in (*self._taken, *self._idle)))

    @property
    def size(self) -> int:
        return self._size

    @property
    def ready(self) -> int:
        return len(self._idle)

    @property
    def coming(self) -> int:
        """Processes that are being started."""
        return self._coming

    @property
    def waiting(self) -> int:
        """Sessions that wait for a process now."""
        return len(self._waiting)

    @property
    def short_s(self) -> float:
        """How long there have been more sessions than processes; 0 if there are enough. Refused sessions are requested
        again after some seconds."""
        now = time.monotonic()
        is_short = bool(self._waiting) or (not self._idle and now - self._refused_at < COMES_AGAIN_S)
        return now - self._short_since if is_short and self.serving else 0.0

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                while True:
                    wanted = self._wanted()
                    self._fill(tasks, wanted)
                    self._shrink(tasks, wanted)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(SIZED_EVERY_S):
                            await self._changed.wait()
                    self._changed.clear()
        finally:
            self._tasks = None
            # Includes connections whose closing was interrupted.
            rest = [*self._idle, *self._taken, *self._ending]
            await asyncio.gather(*(connection.close("the toolbox ends") for connection in rest))

    async def take(self, wait_s: float) -> Connection:
        self._demand = self._demand.arrived(time.monotonic())
        self._changed.set()
        while self._idle:
            connection = self._idle.popleft()
            if not connection.gone.is_set():
                return self._lend(connection)
        self.waited += 1
        turn: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        if self.short_s == 0.0:
            self._short_since = time.monotonic()
        self._waiting.append(turn)
        lent: Connection | None = None
        try:
            async with asyncio.timeout(wait_s):
                lent = await turn
        except TimeoutError:
            if not self._taken:
                raise does_not_serve(self.why) from None
            self._refused_at = time.monotonic()
            raise QuotaError(f"All {self._size} processes of the server are in use.", retry_after_s=1.0) from None
        finally:
            if lent is None:
                self._forget(turn)
        return lent

    def give_back(self, connection: Connection) -> None:
        self._taken.discard(connection)
        if connection.calls == 0 and not connection.gone.is_set() and not connection.retired:
            self._offer(connection)
        elif self._tasks is not None:
            self._ending.add(connection)
            self._tasks.create_task(self._end(connection), name="end a process that was used")
        self._changed.set()

    async def _end(self, connection: Connection) -> None:
        await connection.close()
        self._ending.discard(connection)

    def _lend(self, connection: Connection) -> Connection:
        self._taken.add(connection)
        return connection

    def _forget(self, turn: asyncio.Future[Connection]) -> None:
        """Remove a waiter. If it got a connection at the same moment, the next waiter gets that connection."""
        with contextlib.suppress(ValueError):
            self._waiting.remove(turn)
        if turn.done() and not turn.cancelled():
            self._taken.discard(turn.result())
            self._offer(turn.result())
        turn.cancel()

    def _offer(self, connection: Connection) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                # Counted now, because the task of the waiter runs later.
                turn.set_result(self._lend(connection))
                return
        self._idle.append(connection)

    def connections(self) -> list[Connection]:
        return [*self._idle, *self._taken]

    def replace_retired(self) -> None:
        for connection in [each for each in self._idle if each.retired]:
            self._idle.remove(connection)
            self.give_back(connection)

    def _wanted(self) -> int:
        return wanted_ready(
            self._demand.rate(time.monotonic()),
            self._start_s,
            waiting=len(self._waiting),
            size=self._size,
            process_bytes=self._process_bytes,
            free_bytes=psutil.virtual_memory().available,
        )

    def _fill(self, tasks: asyncio.TaskGroup, wanted: int) -> None:
        while (
            len(self._idle) + self._coming < wanted and len(self._idle) + len(self._taken) + self._coming < self._size
        ):
            self._coming += 1
            tasks.create_task(self._add(), name="start a process in advance")

    def _shrink(self, tasks: asyncio.TaskGroup, wanted: int) -> None:
        while len(self._idle) > wanted:
            connection = self._idle.popleft()
            self._ending.add(connection)
            tasks.create_task(self._end(connection), name="end a process that is not needed")

    async def _add(self) -> None:
        connection = None
        began = time.monotonic()
        try:
            connection = await self._starter.start()
        finally:
            self._coming -= 1
            self._changed.set()
        if connection is not None:
            self.starts += 1
            self._start_s = (self._start_s + time.monotonic() - began) / 2
            self._process_bytes = memory_of_tree(connection.pid() or 0) or self._process_bytes
            self._offer(connection)
            await self._watch(connection)

    async def _watch(self, connection: Connection) -> None:
        """Replace an idle connection that ends. For a connection in use, its session notices the end."""
        await connection.gone.wait()
        if connection in self._taken and not connection.retired:
            self._starter.count_death(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            self._starter.ended(connection)
            await connection.close()
            await self._starter.wait()
            self._changed.set()


def memory_of_tree(pid: int) -> int:
    """Bytes of a process and its descendants; 0 if it has ended."""
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += each.memory_info().rss
    return total
