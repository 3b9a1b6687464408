"""Measures start times of processes: each one writes a line into a pipe as its first act.

Invariant: the time is taken when the line is read, by the same clock as the time of the kill.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# A line is shorter than PIPE_BUF, so lines of several processes never mix.
_CHILD = """echo "$1 $$" > {pipe}
exec sleep 100000
"""


@dataclass(frozen=True)
class Start:
    pid: int
    at: float


class StartTimes:
    """The newest start of every name. Supervisors run `/bin/sh SCRIPT NAME`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        pipe = folder / "arrivals"
        os.mkfifo(pipe)
        self.script = folder / "child.sh"
        self.script.write_text(_CHILD.format(pipe=pipe))
        self.latest: dict[str, Start] = {}
        self._news = threading.Condition()
        # Opened for reading and writing, so that there is no end of file between two writers.
        self._fd = os.open(pipe, os.O_RDWR)
        threading.Thread(target=self._read, name="arrivals", daemon=True).start()

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._fd, 65536):
            now = time.monotonic()
            *lines, rest = (rest + chunk).split(b"\n")
            if b"stop" in lines:
                os.close(self._fd)
                return
            with self._news:
                for line in lines:
                    name, pid = line.decode().split()
                    self.latest[name] = Start(int(pid), now)
                self._news.notify_all()

    def wait(self, condition: Callable[[dict[str, Start]], bool], within_s: float = 120.0) -> float:
        """Waits for a condition. Returns the time of the newest start. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: condition(self.latest), within_s):
                raise TimeoutError(f"{len(self.latest)} processes started, but not all")
            return max(arrival.at for arrival in self.latest.values())

    def wait_count(self, count: int) -> float:
        return self.wait(lambda latest: len(latest) >= count)

    def alive(self) -> int:
        """Count of the newest processes that are alive."""
        return sum(Path(f"/proc/{arrival.pid}").exists() for arrival in self.latest.values())

    def close(self) -> None:
        os.write(self._fd, b"stop\n")
