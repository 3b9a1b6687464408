"""Work that goes on for as long as the coordinator does.

Invariant: a task of the coordinator never ends unseen: what nobody foresaw is in the log, and the work begins again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

AGAIN_AFTER_S = 1.0
log = logging.getLogger(__name__)


def restarting_task(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """A task that begins again whenever it failed. It ends when the work itself comes to its end, or is cancelled."""

    async def last() -> None:
        while True:
            try:
                await work()
                return
            except Exception:
                log.exception("%s failed and begins again in %g s", name, AGAIN_AFTER_S)
            await asyncio.sleep(AGAIN_AFTER_S)

    return asyncio.create_task(last(), name=name)
