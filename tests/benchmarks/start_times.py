"""When a process came up: it says so itself, by one line into a pipe, before it does anything else.

Invariant: the time is taken where the line arrives, by the same clock that the kill was taken with.
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
class Arrival:
    pid: int
    at: float


class Arrivals:
    """The newest arrival of every name. `script` is what supervisors run: `/bin/sh SCRIPT NAME`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        pipe = folder / "arrivals"
        os.mkfifo(pipe)
        self.script = folder / "child.sh"
        self.script.write_text(_CHILD.format(pipe=pipe))
        self.latest: dict[str, Arrival] = {}
        self._news = threading.Condition()
        # Open for both ends: there is a reader before the first writer, and no end of file between two writers.
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
                    self.latest[name] = Arrival(int(pid), now)
                self._news.notify_all()

    def wait(self, condition: Callable[[dict[str, Arrival]], bool], within_s: float = 120.0) -> float:
        """When the condition came to hold: the time of the newest arrival. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: condition(self.latest), within_s):
                raise TimeoutError(f"{len(self.latest)} processes arrived, and that was not all")
            return max(arrival.at for arrival in self.latest.values())

    def wait_count(self, count: int) -> float:
        return self.wait(lambda latest: len(latest) >= count)

    def alive(self) -> int:
        """How many of the newest processes live."""
        return sum(Path(f"/proc/{arrival.pid}").exists() for arrival in self.latest.values())

    def close(self) -> None:
        os.write(self._fd, b"stop\n")
