"""The sandboxes of a toolbox: which processes of tool servers live now, what they use, and what they wrote.

Invariants:
- A sandbox has a number that no other sandbox of this toolbox gets.
- Memory is bounded: only the newest lines of each server are kept, and ended sandboxes are forgotten.
- Each round measures a bounded number of sandboxes, outside of the loop; later rounds measure the others.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentrl.config.data_plane import ToolServer
from agentrl.sandboxes.sandbox_usage import Measured, Usage, UsageMeter
from agentrl.toolbox.mcp_connection import Connection
from agentrl.toolbox.stdio_transport import ServerProcess

MEASURE_EVERY_S = 2.0
MEASURED_AT_ONCE = 200
FULL_FROM, STEP = 0.5, 0.05
MOST_LINES = 2_000
"""The most lines of each server, over all its sandboxes."""


@dataclass(frozen=True, slots=True)
class LoggedLine:
    number: int
    """The number of the line among all lines of the server, from 1."""
    at: float
    sandbox: str
    text: str


class ServerLog:
    """The newest lines of one server."""

    def __init__(self) -> None:
        self._lines: deque[LoggedLine] = deque(maxlen=MOST_LINES)
        self._sandboxes: deque[str] = deque(maxlen=MOST_LINES)
        self.count = 0

    def begin(self, sandbox: str) -> None:
        """A sandbox begins; it may write nothing."""
        self._sandboxes.append(sandbox)

    def add(self, sandbox: str, text: str) -> None:
        self.count += 1
        self._lines.append(LoggedLine(self.count, time.time(), sandbox, text))

    def knows(self, sandbox: str) -> bool:
        return sandbox in self._sandboxes

    def after(self, number: int, sandbox: str = "") -> list[LoggedLine]:
        return [line for line in self._lines if line.number > number and sandbox in ("", line.sandbox)]


@dataclass(eq=False)
class LiveSandbox:
    """One process of a tool server."""

    id: str
    server: str
    config: ToolServer
    connection: Connection
    process: ServerProcess
    made_at: float = field(default_factory=time.time)
    usage: Usage | None = None

    @property
    def kind(self) -> str:
        return self.process.launch.sandbox

    @property
    def is_over(self) -> bool:
        return self.connection.is_over


class LiveSandboxes:
    def __init__(self, toolbox: str) -> None:
        """`toolbox` is its incarnation; it begins the ids."""
        self._prefix = f"{toolbox}/" if toolbox else ""
        self._numbers: dict[str, Iterator[int]] = {}
        self._all: list[LiveSandbox] = []
        self.logs: dict[str, ServerLog] = {}
        self._meter = UsageMeter()
        self._next = 0

    def watched(self, server: str, config: ToolServer, connect: Callable[[], Connection]) -> Callable[[], Connection]:
        """A function like `connect` that also registers the sandbox of each connection here."""

        def watch() -> Connection:
            connection = connect()
            self._add(server, config, connection)
            return connection

        return watch

    def _add(self, server: str, config: ToolServer, connection: Connection) -> None:
        """Add a sandbox. A connection to a server elsewhere has none."""
        process = connection.peer
        if not isinstance(process, ServerProcess):
            return
        number = next(self._numbers.setdefault(server, itertools.count(1)))
        sandbox = LiveSandbox(f"{self._prefix}{server}-{number}", server, config, connection, process)
        log = self.logs.setdefault(server, ServerLog())
        log.begin(sandbox.id)
        process.on_line = lambda text: log.add(sandbox.id, text)
        self._all = [each for each in self._all if not each.is_over]
        self._all.append(sandbox)

    def living(self, server: str = "") -> list[LiveSandbox]:
        """The sandboxes with a running process, the oldest first."""
        self._all = [each for each in self._all if not each.is_over]
        return [each for each in self._all if each.process.pid is not None and server in ("", each.server)]

    def whole_id(self, id: str) -> str:
        """The id with its toolbox, also for one that was given without it."""
        return id if "/" in id else f"{self._prefix}{id}"

    def find(self, id: str) -> LiveSandbox | None:
        return next((each for each in self.living() if each.id == id), None)

    def of_connection(self, connection: Connection) -> LiveSandbox | None:
        return next((each for each in self._all if each.connection is connection), None)

    def memory_share(self, server: str) -> float:
        """The used share of the memory limit in the fullest sandbox of a server, rounded to steps so that reports
        seldom change."""
        return math.floor(max((_share(each) for each in self.living(server)), default=0.0) / STEP + 1e-6) * STEP

    def fullest(self, server: str) -> str:
        """The sandbox that is nearest to its limit; empty below half of it."""
        found = max(self.living(server), key=_share, default=None)
        return found.id if found is not None and _share(found) >= FULL_FROM else ""

    async def measure(self) -> None:
        """Measure the next sandboxes in turn."""
        living = self.living()
        if not living:
            return
        start = self._next % len(living)
        chosen = [*living[start:], *living[:start]][:MEASURED_AT_ONCE]
        self._next = start + len(chosen)
        wanted = {pid: each for each in chosen if (pid := each.process.pid) is not None}
        measured = [
            Measured(pid, each.kind, each.config.sandbox, each.process.launch.cgroup) for pid, each in wanted.items()
        ]
        found = await asyncio.to_thread(self._meter.measure, measured)
        for pid, usage in found.items():
            wanted[pid].usage = usage
        self._meter.forget([each.process.pid or 0 for each in self.living()])

    async def keep_measured(self) -> None:
        """Measure until cancelled."""
        while True:
            await self.measure()
            await asyncio.sleep(MEASURE_EVERY_S)


def _share(sandbox: LiveSandbox) -> float:
    return sandbox.usage.memory_share if sandbox.usage is not None else 0.0
