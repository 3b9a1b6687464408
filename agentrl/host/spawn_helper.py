"""Starts processes directly inside a cgroup for the host agent: `python -I -S spawn_helper.py`, a socket is its stdin.

A process that moves into a cgroup waits for a grace period of the kernel (about 13 ms, one process at a time); a child
that `clone3` creates inside the cgroup does not. Python code may follow a raw `clone3` only in a process with one
thread, because another thread could hold a lock that the child needs. The host agent has several threads, so this
program forks in its place. `CLONE_PARENT` makes the agent the parent of the child.

* The child is a direct child of the host agent, and in its cgroup from its first instruction.
* A request gets one reply, after the child has executed its program or failed to.
* The helper ends when the agent closes the socket or dies.

It imports nothing of agentrl: it must start fast and stay small, because every child is a copy of it until it executes.
"""

import contextlib
import ctypes
import errno
import marshal
import os
import signal
from typing import NoReturn

CLONE_PARENT = 0x8000
CLONE_INTO_CGROUP = 0x200000000
SYS_CLONE3 = 435
"""The same number on all architectures."""
LENGTH_BYTES = 4
CLONE_REFUSED = "clone"
EXEC_FAILED = "exec"


class CloneArguments(ctypes.Structure):
    """struct clone_args of linux/sched.h in the size that has a cgroup."""

    _fields_ = [("flags", ctypes.c_uint64), ("unused", ctypes.c_uint64 * 9), ("cgroup", ctypes.c_uint64)]


# PyDLL keeps the GIL, which the child would otherwise have to take again.
_libc = ctypes.PyDLL(None, use_errno=True)


def _clone_into(cgroup: str) -> int:
    """Like fork, with the child in the cgroup. With CLONE_PARENT the kernel wants no exit signal: it copies ours."""
    folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        arguments = CloneArguments(flags=CLONE_INTO_CGROUP | CLONE_PARENT, cgroup=folder)
        pid = int(_libc.syscall(SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    finally:
        os.close(folder)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    return pid


def _spawn(
    command: list[str], env: dict[str, str], cwd: str, output: str, cgroup: str, enter: list[str]
) -> tuple[int, str, int]:
    """Returns (pid, stage that failed, errno). `enter` are the `cgroup.procs` files of further cgroups."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            pid = _clone_into(cgroup)
        except OSError as refused:
            return 0, CLONE_REFUSED, refused.errno or errno.EIO
        if pid == 0:
            _become(command, env, cwd, output, enter, writer)
        os.close(writer)
        writer = -1
        failed = os.read(reader, 16)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    return (pid, EXEC_FAILED, int(failed)) if failed else (pid, "", 0)


def _become(command: list[str], env: dict[str, str], cwd: str, output: str, enter: list[str], report: int) -> NoReturn:
    """Execute the program, in the child. A failure goes to the pipe `report` as an errno."""
    try:
        os.setsid()
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        for path in enter:
            with contextlib.suppress(OSError), open(path, "w") as procs:
                procs.write("0")  # the writing process itself
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python ignores them, and an ignored signal stays ignored.
        if cwd:
            os.chdir(cwd)
        os.execve(command[0], command, env)
    except OSError as failed:
        os.write(report, str(failed.errno or errno.EIO).encode())
    finally:
        os._exit(127)


def _read(count: int) -> bytes:
    """Reads that many bytes from the socket; fewer at its end."""
    parts = b""
    while len(parts) < count and (part := os.read(0, count - len(parts))):
        parts += part
    return parts


def main() -> None:
    while len(head := _read(LENGTH_BYTES)) == LENGTH_BYTES:
        request = _read(int.from_bytes(head, "big"))
        reply = marshal.dumps(_spawn(*marshal.loads(request)))
        os.write(0, len(reply).to_bytes(LENGTH_BYTES, "big") + reply)


if __name__ == "__main__":
    main()
