"""The parent of the units of a host agent: `python -I -S spawn_helper.py`, with a socket as its stdin.

Only the parent of a process learns its exit status from every kernel. This program is the parent of the units and
outlives a killed host agent, so the next agent can read how they ended.

It also starts them in their cgroups. A process that moves into a cgroup waits for a grace period of the kernel (about
13 ms, one process at a time); a child that `clone3` creates inside the cgroup does not. Python code may follow a raw
`clone3` only in a process with one thread, because another thread could hold a lock that the child needs.

* A child is in its cgroups before its program runs.
* Each request gets one reply. The reply to a start comes after the child has executed its program or failed to do so. *
The status of an ended child is written to its status file before it is answered. * Without an agent the helper lives
until its last child has ended.

It imports nothing of agentrl: it must start fast and stay small, because every child is a copy of it until it executes.
"""

import contextlib
import ctypes
import errno
import marshal
import os
import signal
import sys
from typing import NoReturn

CLONE_INTO_CGROUP = 0x200000000
SYS_CLONE3 = 435
"""The same number on all architectures."""
LENGTH_BYTES = 4
WITHOUT_CLONE = "--without-clone"


class CloneArguments(ctypes.Structure):
    """struct clone_args of linux/sched.h in the size that has a cgroup."""

    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("addresses", ctypes.c_uint64 * 3),
        ("exit_signal", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
        ("cgroup", ctypes.c_uint64),
    ]


# PyDLL keeps the GIL, which the child would otherwise have to take again.
_libc = ctypes.PyDLL(None, use_errno=True)
_status_files: dict[int, str] = {}
"""The status files by the pid of the child."""


def _clone_into(cgroup: str) -> int:
    """Like fork, with the child in the cgroup; -1 if the kernel or a sandbox refuses."""
    try:
        folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1
    try:
        arguments = CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=folder)
        return int(_libc.syscall(SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    finally:
        os.close(folder)


def _spawn(
    command: list[str], env: dict[str, str], cwd: str, output: str, cgroups: list[str], status_file: str
) -> tuple[int, int, str]:
    """Returns (pid, errno, cause): the last two give the reason if the program could not be executed."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        cloned = bool(cgroups) and WITHOUT_CLONE not in sys.argv
        pid = _clone_into(cgroups[0]) if cloned else -1
        if pid < 0:
            cloned, pid = False, os.fork()
        if pid == 0:
            _become(command, env, cwd, output, cgroups[1:] if cloned else cgroups, writer)
        os.close(writer)
        writer = -1
        failed = os.read(reader, 4096)
    except OSError as refused:
        return 0, refused.errno or errno.EIO, ""
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if failed:
        os.waitpid(pid, 0)
        number, cause = marshal.loads(failed)
        return 0, number, cause
    _status_files[pid] = status_file
    return pid, 0, ""


def _become(command: list[str], env: dict[str, str], cwd: str, output: str, enter: list[str], report: int) -> NoReturn:
    """Execute the program, in the child. The cause of a failure goes to the pipe `report`."""
    try:
        os.setsid()
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        for cgroup in enter:
            with contextlib.suppress(OSError), open(f"{cgroup}/cgroup.procs", "w") as procs:
                procs.write("0")  # the writing process itself
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python ignores these signals, and a child inherits ignored signals.
        if cwd:
            os.chdir(cwd)
        os.execve(command[0], command, env)
    except OSError as failed:
        os.write(report, marshal.dumps((failed.errno or errno.EIO, "")))
    except BaseException as failed:  # noqa: BLE001 - the child ends here, and its parent reports the cause
        os.write(report, marshal.dumps((errno.EINVAL, repr(failed)[:1000])))
    finally:
        os._exit(127)


def _ended(pid: int, status: int) -> None:
    """Write the status of a child for the next host agent. On a full disk it is lost."""
    path = _status_files.pop(pid, "")
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, b"%d\n" % status)
        finally:
            os.close(file)


def _reap(pid: int) -> tuple[int, int]:
    """Returns (pid, status), or (0, 0) if it is no ended child."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0, 0
    if found:
        _ended(pid, status)
    return found, status


def _read(count: int) -> bytes:
    """Reads that many bytes from the socket; fewer at its end."""
    parts = b""
    while len(parts) < count and (part := _read_some(count - len(parts))):
        parts += part
    return parts


def _read_some(count: int) -> bytes:
    """Reads from the socket. If a killed agent left a reply unread, the end of the socket appears here as an error."""
    try:
        return os.read(0, count)
    except ConnectionError:
        return b""


def main() -> None:
    requests = {"spawn": _spawn, "reap": _reap}
    with contextlib.suppress(ConnectionError):
        while len(head := _read(LENGTH_BYTES)) == LENGTH_BYTES:
            kind, *arguments = marshal.loads(_read(int.from_bytes(head, "big")))
            reply = marshal.dumps(requests[kind](*arguments))  # type: ignore[operator]
            os.write(0, len(reply).to_bytes(LENGTH_BYTES, "big") + reply)
    with contextlib.suppress(ChildProcessError):
        while True:
            _ended(*os.wait())


if __name__ == "__main__":
    main()
