"""The floor of every supervisor: starts COUNT processes and starts each again when it ends; nothing else at all.

`python -m tests.benchmarks.floor SCRIPT COUNT`
"""

from __future__ import annotations

import os
import select
import signal
import sys


def respawn(script: str, count: int) -> None:
    poll = select.epoll()
    names: dict[int, str] = {}
    pids: dict[int, int] = {}

    def start(name: str) -> None:
        pid = os.posix_spawn("/bin/sh", ["/bin/sh", script, name], os.environ)
        handle = os.pidfd_open(pid)
        names[handle], pids[handle] = name, pid
        poll.register(handle, select.EPOLLIN)

    def end(*_: object) -> None:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        sys.exit()

    signal.signal(signal.SIGTERM, end)
    for number in range(count):
        start(f"unit-{number}")
    while True:
        for handle, _ in poll.poll():
            os.waitpid(pids.pop(handle), 0)
            poll.unregister(handle)
            os.close(handle)
            start(names.pop(handle))


if __name__ == "__main__":
    respawn(sys.argv[1], int(sys.argv[2]))
