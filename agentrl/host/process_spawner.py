"""The host agent's side of `spawn_helper.py`, the parent of all units.

* A helper that dies or hangs is replaced. Its children then become children of the agent. * After a failed conversation
with the helper, no process of the attempt is left alive, so a unit never runs twice.
"""

from __future__ import annotations

import errno
import logging
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.host import procfs, spawn_helper

log = logging.getLogger(__name__)

_REPLY_WITHIN_S = 5.0
"""A helper that a signal has stopped delays the agent once by this time."""
_ENV_OF_MARK = procfs.MARK_INCARNATION.decode()


class ProcessSpawner:
    """Owns the helper process, which carries the mark of the run.

    `clone_into_cgroup=False`: processes enter their cgroups by themselves, as where the kernel has no clone3.
    """

    def __init__(self, run: str, *, clone_into_cgroup: bool = True) -> None:
        self._run = run
        self._options = () if clone_into_cgroup else (spawn_helper.WITHOUT_CLONE,)
        self._helper: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._children: set[int] = set()

    @property
    def pid(self) -> int:
        """The helper's pid; 0 if it does not run."""
        return self._helper.pid if self._helper is not None else 0

    def start(self) -> None:
        """Start the helper, so that the first spawn does not wait for it. Raises OSError."""
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", spawn_helper.__file__, *self._options]
        try:
            with theirs:
                env = procfs.without_marks(os.environ) | {"AGENTRL_RUN": self._run}
                self._helper = subprocess.Popen(command, stdin=theirs.fileno(), env=env, start_new_session=True)
        except OSError:
            ours.close()
            raise
        ours.settimeout(_REPLY_WITHIN_S)
        self._socket = ours

    def close(self) -> None:
        """Leave the helper alone. It lives until its last child has ended."""
        if not self._children:
            self._kill()
        elif self._socket is not None and self._helper is not None:
            self._socket.close()
            self._helper.returncode = 0  # Popen must not warn that it still lives.
            self._socket = self._helper = None

    def spawn(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str | Path | None,
        output: int,
        cgroups: Sequence[Path],
        status_file: str | Path,
    ) -> int:
        """The pid of a child of the helper inside these cgroups. Raises OSError if the program cannot be executed, and
        ValueError for NUL."""
        if any("\0" in text for text in (*command, *env.values())):
            raise ValueError("the command or its environment has an embedded null byte")
        # The helper opens the output through /proc: no descriptor has to travel.
        fd = f"/proc/{os.getpid()}/fd/{output}"
        request = ("spawn", list(command), dict(env), str(cwd or ""), fd, [*map(str, cgroups)], str(status_file))
        try:
            reply = self._ask(*request)
        except (OSError, EOFError, ValueError, TypeError) as broken:
            self._replace(broken)
            self._end_attempt(env.get(_ENV_OF_MARK, ""))
            reply = self._ask_again(request, env.get(_ENV_OF_MARK, ""))
        pid, number, cause = reply
        if number:
            raise OSError(number, cause or os.strerror(number))
        self._children.add(pid)
        return int(pid)

    def _ask_again(self, request: tuple[Any, ...], incarnation: str) -> Any:
        """Ask the new helper. If it fails too, it is also replaced, so that a later request cannot read its late
        reply."""
        try:
            return self._ask(*request)
        except (OSError, EOFError, ValueError, TypeError) as broken:
            self._replace(broken)
            self._end_attempt(incarnation)
            raise OSError(errno.EAGAIN, f"the spawn helper failed twice: {broken}") from broken

    def reap(self, pid: int) -> int | None:
        """The wait status of an ended child of the helper; None if it is not known."""
        if pid not in self._children or self._socket is None:
            return None
        try:
            found, status = self._ask("reap", pid)
        except (OSError, EOFError, ValueError, TypeError) as broken:
            self._replace(broken)
            return None
        if not found:
            return None
        self._children.discard(pid)
        return int(status)

    def _ask(self, *request: Any) -> Any:
        self.start()
        assert self._socket is not None
        body = marshal.dumps(request)
        self._socket.sendall(len(body).to_bytes(spawn_helper.LENGTH_BYTES, "big") + body)
        size = int.from_bytes(self._read(self._socket, spawn_helper.LENGTH_BYTES), "big")
        return marshal.loads(self._read(self._socket, size))

    @staticmethod
    def _read(connection: socket.socket, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = connection.recv(count - len(parts))
            if not part:
                raise EOFError("it has ended")
            parts += part
        return parts

    def _replace(self, broken: Exception) -> None:
        log.warning("The spawn helper (process %d) failed: %r. It is replaced.", self.pid, broken)
        self._kill()

    def _kill(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
        self._socket = self._helper = None
        self._children.clear()

    def _end_attempt(self, incarnation: str) -> None:
        """Kill a process that the helper may have started without a reply. By now it is a child of this process. This
        does not use `cgroup.kill`, because the kernel would also kill the next child that is created inside that
        cgroup.
        """
        for pid, stat in procfs.all_stats().items():
            if stat.ppid == os.getpid() and stat.state not in "ZX" and _is_of_attempt(pid, incarnation):
                procfs.kill_exactly(pid, stat.start_ticks)


def _is_of_attempt(pid: int, incarnation: str) -> bool:
    """Before a child of the helper executes its program, it looks like the helper."""
    marks = procfs.marks(pid) or {}
    return marks.get(procfs.MARK_INCARNATION) == incarnation.encode() or spawn_helper.__file__ in procfs.command(pid)
