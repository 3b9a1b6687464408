"""Starts tasks that run as long as the coordinator does.

Invariants:
- An unexpected exception is logged, and the task starts again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

RESTART_AFTER_S = 1.0
log = logging.getLogger(__name__)


def restarting_task(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """A task that starts again after a failure. It ends when the work returns or is cancelled."""

    async def run() -> None:
        while True:
            try:
                await work()
                return
            except Exception:
                log.exception("%s failed and starts again in %g s", name, RESTART_AFTER_S)
            await asyncio.sleep(RESTART_AFTER_S)

    return asyncio.create_task(run(), name=name)
