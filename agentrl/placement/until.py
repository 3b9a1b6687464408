"""Waits for a condition outside of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_POLL_S = 0.05
Answer = TypeVar("Answer")


def until(look: Callable[[], Answer], within_s: float, *, every_s: float = _POLL_S) -> Answer:
    """The first answer that is true, or the last one."""
    deadline = time.monotonic() + within_s
    while not (answer := look()) and time.monotonic() < deadline:
        time.sleep(every_s)
    return answer
