"""Starts a process with pipes, as the leader of a process group of its own.

Invariants:
- A start that is cancelled leaves nothing: the process, its group and what would outlive them are removed.
- The descriptors that the process inherits are closed here, however its start ends.

asyncio would kill only the leader of a cancelled start, and a half made sandbox would outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

REAPED_WITHIN_S = 5.0
"""asyncio takes the status of a dead process in a thread, which may be late on a busy machine."""
LOOK_EVERY_S = 0.005


class Start(Protocol):
    """What one process is started from."""

    @property
    def command(self) -> Sequence[str]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def cwd(self) -> Path | None: ...
    def passing(self) -> AbstractContextManager[list[int]]:
        """Yields the descriptors that the process inherits; closes them in this process afterwards."""
        ...


async def started(start: Start, *, limit: int, remove: Callable[[], Awaitable[object]]) -> Process:
    """Starts the process. `limit` is that of a line in the buffers of its pipes. `remove` removes what would outlive a
    process whose start is cancelled. Raises OSError or ValueError if it cannot be started."""
    with start.passing() as descriptors:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *start.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=dict(start.env),
                cwd=start.cwd,
                pass_fds=descriptors,
                start_new_session=True,
                limit=limit,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError, ValueError):
                await end(await starting)
            await remove()
            raise


async def end(process: Process) -> None:
    """Kills a process and its group, and lets go of its pipes, which a descendant that left the group may hold open."""
    signal_group(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAPED_WITHIN_S):
            while process.returncode is None:
                await asyncio.sleep(LOOK_EVERY_S)
    process._transport.close()  # type: ignore[attr-defined]


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signals a process group, which keeps the pid of its leader after that died."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
