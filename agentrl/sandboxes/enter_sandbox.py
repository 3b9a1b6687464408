"""Runs a program in the namespaces of a sandbox: `python -I -S enter_sandbox.py PID DIRECTORY LIMITS FILTER
PROGRAM...`. FILTER is that of the system calls, in hexadecimal digits, or empty.

It is a program of its own, because only a process with one thread may enter a user namespace. It imports the standard
library only, and all of it before it enters, because the files of the host are out of reach then.

Invariants:
- It never runs the program outside of a sandbox: a process without namespaces of its own is refused.
- The program has no capability, gains no privilege, and has the limits and the filter of the sandbox: the server in it
  may write into a program that runs beside it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import sys

REFUSED, NOT_FOUND = 125, 127
_KINDS = ("cgroup", "ipc", "uts", "net", "mnt", "pid")
_MUST_DIFFER = ("user", "mnt", "pid")
_NS_GET_USERNS = 0xB701
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_PDEATHSIG, _SIGKILL = 24, 38, 1, 9
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _INSTRUCTION_BYTES = 22, 2, 8
_MOST_CAPABILITIES = 64
_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main(pid: str, directory: str, limits: str, filter: str, program: list[str]) -> int:
    spaces = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in (*_KINDS, "user")}
    different = [kind for kind, space in spaces.items() if not _is_own(kind, space)]
    if missing := [kind for kind in _MUST_DIFFER if kind not in different]:
        print(f"process {pid} has no own namespaces ({', '.join(missing)})", file=sys.stderr)
        return REFUSED
    entered = spaces["user"]
    if os.geteuid() != 0:
        # An ordinary user may enter the other namespaces only from the user namespace that owns them.
        entered = fcntl.ioctl(spaces["mnt"], _NS_GET_USERNS)
        _enter(entered)
    for kind in different:
        if kind != "user":
            _enter(spaces[kind])
    if entered == spaces["user"] or not os.path.sameopenfile(entered, spaces["user"]):
        _enter(spaces["user"])
    os.chdir("/")
    child = os.fork()
    if child == 0:
        try:
            _become(directory, limits, bytes.fromhex(filter), program)
        except OSError as failed:
            print(f"{program[0]}: {failed.strerror}", file=sys.stderr, flush=True)
        finally:
            os._exit(NOT_FOUND)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) % 256


def _become(directory: str, limits: str, filter: bytes, program: list[str]) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    for capability in range(_MOST_CAPABILITIES):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "privileges cannot be given up")
    for item in limits.split(","):
        name, _, value = item.partition("=")
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        most = resource.getrlimit(kind)[1]
        number = int(value) if most == resource.RLIM_INFINITY else min(int(value), most)
        resource.setrlimit(kind, (number, number))
    try:
        os.chdir(directory)
    except OSError:
        os.chdir("/")
    calls = _Filter(len(filter) // _INSTRUCTION_BYTES, filter)
    if filter and _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(calls), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "system calls cannot be filtered")
    os.execvp(program[0], program)


def _is_own(kind: str, space: int) -> bool:
    theirs, mine = os.fstat(space), os.stat(f"/proc/self/ns/{kind}")
    return (theirs.st_dev, theirs.st_ino) == (mine.st_dev, mine.st_ino)


def _enter(space: int) -> None:
    if _libc.setns(space, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        code = main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    except OSError as failed:
        print(f"the sandbox cannot be entered: {failed.strerror}", file=sys.stderr)
        code = REFUSED
    sys.exit(code)
