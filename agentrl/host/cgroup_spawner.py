"""The host agent's side of `spawn_helper.py`, which starts processes inside a cgroup with `clone3`.

* A helper that dies, hangs or meets a kernel without `CLONE_INTO_CGROUP` never prevents a start: the caller falls back.
* After a failed conversation nothing of the attempt is left alive in the cgroup, so a unit never runs twice.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.host import spawn_helper

log = logging.getLogger(__name__)

_REPLY_WITHIN_S = 2.0
"""A helper that is stopped by a signal holds up the agent once for this long."""
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.E2BIG)
"""The kernel, or a sandbox, does not offer clone3 with a cgroup."""


class CgroupSpawner:
    """Owns the helper process. `enabled=False` makes every spawn fall back."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._helper: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int:
        """The helper's pid; 0 if it does not run."""
        return self._helper.pid if self._helper is not None else 0

    def start(self) -> None:
        """Start the helper, so that the first spawn does not wait for it."""
        if not self._enabled or self._socket is not None:
            return
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", spawn_helper.__file__]
        try:
            with theirs:
                self._helper = subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True)
        except OSError as failed:
            ours.close()
            self._disable(failed)
            return
        ours.settimeout(_REPLY_WITHIN_S)
        self._socket = ours

    def close(self) -> None:
        """End the helper. The processes that it started live on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
            self._helper = None

    def spawn(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str | Path | None,
        output: int,
        cgroups: Sequence[Path],
    ) -> int:
        """The pid of a child of this process inside the first cgroup (v2) and the others; 0 if the caller must fall
        back. Raises OSError if the program cannot be executed."""
        self.start()
        if self._socket is None or any("\0" in text for text in (*command, *env.values())):
            return 0
        tree, *others = cgroups
        # The helper opens the output through /proc: no descriptor has to travel.
        request = (
            list(command),
            dict(env),
            str(cwd or ""),
            f"/proc/{os.getpid()}/fd/{output}",
            str(tree),
            [f"{group}/cgroup.procs" for group in others],
        )
        try:
            pid, stage, number = self._ask(self._socket, marshal.dumps(request))
        except (OSError, EOFError, ValueError, TypeError) as broken:
            log.warning("The spawn helper (process %d) failed: %r. It is replaced.", self.pid, broken)
            self.close()
            with contextlib.suppress(OSError):
                (tree / "cgroup.kill").write_text("1")  # what it may have started without a reply
            return 0
        if stage == spawn_helper.EXEC_FAILED:
            os.waitpid(pid, 0)
            raise OSError(number, os.strerror(number))
        if stage == spawn_helper.CLONE_REFUSED and number in _NOT_HERE:
            self._disable(OSError(number, os.strerror(number)))
        return pid

    def _ask(self, connection: socket.socket, request: bytes) -> tuple[int, str, int]:
        connection.sendall(len(request).to_bytes(spawn_helper.LENGTH_BYTES, "big") + request)
        size = int.from_bytes(self._read(connection, spawn_helper.LENGTH_BYTES), "big")
        pid, stage, number = marshal.loads(self._read(connection, size))
        return pid, stage, number

    @staticmethod
    def _read(connection: socket.socket, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = connection.recv(count - len(parts))
            if not part:
                raise EOFError("it has ended")
            parts += part
        return parts

    def _disable(self, why: OSError) -> None:
        log.info("Processes enter their cgroups by themselves, because the helper cannot: %s.", why.strerror)
        self._enabled = False
        self.close()
