"""Counts SIGTERM and SIGINT as requests to end.

Invariants:
- The thread of the socket sees a signal even while the main thread is stuck in foreign code.
- Signal handlers take no lock.
- Children forked without exec get the default handlers back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any


class EndSignals:
    """Counts the signals that request the end of this process. One per process; only the main thread can install it."""

    def __init__(self, *, interrupt_ends: bool) -> None:
        """`interrupt_ends`: Ctrl-C counts. A supervised unit ignores it."""
        self._counted = {signal.SIGTERM, signal.SIGINT} if interrupt_ends else {signal.SIGTERM}
        self._by_pipe = 0
        self._by_handler = 0
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former: dict[signal.Signals, Any] = {}
        self._former_wakeup = -1

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # A handler, not SIG_IGN: children would inherit SIG_IGN over exec.
        for number in (signal.SIGTERM, signal.SIGINT):
            self._former[number] = signal.signal(number, self._handle)
        self._former_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        os.register_at_fork(
            before=self._hold_signals, after_in_parent=self._release_signals, after_in_child=self._forget_in_child
        )

    def restore(self) -> None:
        if self._former:
            signal.set_wakeup_fd(self._former_wakeup)
            for number, handler in self._former.items():
                signal.signal(number, handler)
            self._former.clear()

    def fileno(self) -> int:
        """Readable after a signal; then call `count`."""
        return self._reader

    def count(self) -> int:
        """Return how many requests to end have arrived."""
        with contextlib.suppress(BlockingIOError):
            self._by_pipe += sum(number in self._counted for number in os.read(self._reader, 4096))
        # The program's loop.add_signal_handler may have replaced the wake-up pipe; the handler still counts.
        return max(self._by_pipe, self._by_handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in self._counted:
            self._by_handler += 1

    # A forked child shares the pipe: a signal to the child would count in its parent if it kept these handlers.

    def _hold_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._former)

    def _release_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._former)

    def _forget_in_child(self) -> None:
        with contextlib.suppress(ValueError):  # Forked from another thread than the main one.
            signal.set_wakeup_fd(-1)
            for number in self._former:
                signal.signal(number, signal.SIG_DFL)
        self._release_signals()
