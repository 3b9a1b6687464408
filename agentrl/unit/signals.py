"""SIGTERM and SIGINT as counted requests.

Invariants: a signal is seen by the thread of the socket even while the main thread is stuck in foreign code; handlers
take no lock; children forked without exec get the default handlers back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any


class EndSignals:
    """Counts the signals that ask this process to end. One per process; does nothing outside of the main thread."""

    def __init__(self, *, interrupt_ends: bool) -> None:
        """`interrupt_ends`: whether Ctrl-C counts; a supervised unit ignores it."""
        self._counted = {signal.SIGTERM, signal.SIGINT} if interrupt_ends else {signal.SIGTERM}
        self._by_pipe = 0
        self._by_handler = 0
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former: dict[signal.Signals, Any] = {}
        self._former_wakeup = -1

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # A handler of our own, not SIG_IGN: children would inherit that over exec.
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
        """Readable when a signal arrived; then call `count`."""
        return self._reader

    def count(self) -> int:
        """How many requests to end there were."""
        with contextlib.suppress(BlockingIOError):
            self._by_pipe += sum(number in self._counted for number in os.read(self._reader, 4096))
        # Somebody's loop.add_signal_handler may have taken the wake-up pipe away; the handler still counts.
        return max(self._by_pipe, self._by_handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in self._counted:
            self._by_handler += 1

    # A signal to a child that still has these handlers would be written into the pipe that it shares with its parent.

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
