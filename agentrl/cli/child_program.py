"""Programs that a command starts and whose messages it shows.

Invariant: the program ends before its command does, also when a person interrupts that.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import Popen


@contextlib.contextmanager
def signals_for(process: Popen[bytes]) -> Iterator[None]:
    """Let the program end in order at Ctrl-C or SIGTERM; its command waits for that.

    A terminal sends Ctrl-C to both processes, `kill` only to the command. A second signal changes nothing.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def messages_of(process: Popen[bytes]) -> Iterator[dict[str, Any]]:
    """A line of JSON each."""
    import json

    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
