"""The minimal supervisor, as a lower limit: starts COUNT processes and restarts each one that ends.

`python bare_respawn.py SCRIPT COUNT [CGROUP]`. With CGROUP, a writable cgroup, each process gets a cgroup of its own
below it, because ending whole process trees needs one; the child enters the cgroup before it executes its program.
"""

from __future__ import annotations

import os
import select
import signal
import sys

_ENTER = 'echo $$ >"$1"; shift; exec "$@"'


class Loop:
    def __init__(self, script: str, cgroup: str) -> None:
        self._script = script
        self._cgroup = cgroup
        self._poll = select.epoll()
        self._lives: dict[int, tuple[str, int, str]] = {}
        """Name, pid and cgroup by pidfd."""

    def start(self, name: str, life: int = 1) -> None:
        command = ["/bin/sh", self._script, name]
        group = ""
        if self._cgroup:
            group = f"{self._cgroup}/{name}.{life}"
            os.mkdir(group)
            command = ["/bin/sh", "-c", _ENTER, "sh", f"{group}/cgroup.procs", *command]
        pid = os.posix_spawn("/bin/sh", command, os.environ)
        handle = os.pidfd_open(pid)
        self._lives[handle] = (name, pid, group)
        self._poll.register(handle, select.EPOLLIN)

    def turn(self) -> None:
        for handle, _ in self._poll.poll():
            name, pid, group = self._lives.pop(handle)
            os.waitpid(pid, 0)
            self._poll.unregister(handle)
            os.close(handle)
            life = 1
            if group:
                os.rmdir(group)
                life = int(group.rpartition(".")[2]) + 1
            self.start(name, life)

    def end(self, *_: object) -> None:
        for _, pid, group in self._lives.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if group:
                os.rmdir(group)
        sys.exit()


def respawn(script: str, count: int, cgroup: str = "") -> None:
    loop = Loop(script, cgroup)
    signal.signal(signal.SIGTERM, loop.end)
    for number in range(count):
        loop.start(f"unit-{number}")
    while True:
        loop.turn()


if __name__ == "__main__":
    respawn(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
