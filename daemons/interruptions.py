"""What a program that a command starts does when a person interrupts it.

Invariants:
- Its servers of tools and processes of environments end in order, and the program ends with `ExitCode.INTERRUPTED`.
- Code of users that holds up the event loop does not hold up that for longer than `ENDS_WITHIN_S`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

from agentrl.errors import ExitCode

ENDS_WITHIN_S = 15.0
T = TypeVar("T")


async def until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Raises CancelledError when it was interrupted."""
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)

    def stop(number: int, frame: FrameType | None) -> None:
        # Not by the loop, which may be held up.
        last = threading.Timer(ENDS_WITHIN_S, _end)
        last.daemon = True
        last.start()
        loop.call_soon_threadsafe(working.cancel)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return await working
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end() -> None:
    sys.stderr.flush()
    os._exit(ExitCode.INTERRUPTED)
