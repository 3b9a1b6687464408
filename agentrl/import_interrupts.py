"""Signals while a program imports its modules."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Ctrl-C ends the process by the signal, without the traceback of an import."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
