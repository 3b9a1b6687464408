"""Generates the filter of system calls (seccomp) that bubblewrap applies to a tool server.

It denies what no tool server needs and what has let programs out of namespaces: other processes' memory, mounts, keys,
kernel modules and programs, namespaces, the clock. Debuggers and nested sandboxes do not work inside.

Invariants:
- System calls of another architecture, and of the x32 form, fail as if they did not exist.
- `io_uring` and `clone3`, whose arguments a filter cannot see, fail as if they did not exist; the C library and others
  fall back to older calls.
- A socket has one of four address families. Others fail as if they did not exist, such as AF_VSOCK, which reaches the
  hypervisor from any network namespace.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_DENIED = {
    # name: (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_MISSING = {
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
}
_WITH_FLAGS = {"clone": (56, 220), "unshare": (272, 97)}
"""Denied if their first argument asks for a namespace."""
_SOCKET = (41, 198)
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK, by which the C library reads the interfaces."""
_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""


class _Machine(NamedTuple):
    column: int
    audit: int
    """AUDIT_ARCH_... of the kernel."""


_MACHINES = {"x86_64": _Machine(0, 0xC000003E), "aarch64": _Machine(1, 0xC00000B7)}
_X32 = 0x40000000

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _AUDIT_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_LINE = struct.Struct("=HBBI")


def problem() -> str:
    """Empty if a filter for this architecture is known, else a clause that says why not and what to do."""
    if platform.machine() in _MACHINES:
        return ""
    return f"system calls are not filtered on {platform.machine()}; use one of {', '.join(_MACHINES)}"


def filter_file() -> BinaryIO:
    """The filter as bubblewrap reads it, which takes it from the current position."""
    file = os.fdopen(os.memfd_create("system-calls"), "w+b")
    file.write(program(platform.machine()))
    file.seek(0)
    return file


def program(machine: str) -> bytes:
    """The filter in the form of classic BPF."""
    column, audit = _MACHINES[machine]
    denied, missing, with_flags = (
        [numbers[column] for numbers in calls.values()] for calls in (_DENIED, _MISSING, _WITH_FLAGS)
    )
    checks: list[tuple[int, str, int]] = [(_IF_EQUAL, "denied", number) for number in denied]
    checks += [(_IF_EQUAL, "missing", number) for number in missing]
    checks += [(_IF_EQUAL, "flags", number) for number in with_flags]
    checks.append((_IF_EQUAL, "family", _SOCKET[column]))
    if machine == "x86_64":
        checks.insert(0, (_IF_AT_LEAST, "missing", _X32))
    # After the checks: allow; load the flags, deny or allow; deny; missing; load the family, no such family or allow.
    ends = {"flags": len(checks) + 1, "denied": len(checks) + 4, "missing": len(checks) + 5, "family": len(checks) + 6}

    def lines() -> Iterator[tuple[int, int, int, int]]:
        yield _LOAD, 0, 0, _AUDIT_AT
        yield _IF_EQUAL, 0, ends["missing"] + 1, audit
        yield _LOAD, 0, 0, _NUMBER_AT
        for place, (operation, end, number) in enumerate(checks):
            yield operation, ends[end] - place - 1, 0, number
        yield _RETURN, 0, 0, _ALLOW
        yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
        yield _IF_ANY_BIT, 1, 0, _NAMESPACES
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _ERROR | errno.EPERM
        yield _RETURN, 0, 0, _ERROR | errno.ENOSYS
        yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
        for place, family in enumerate(_FAMILIES):
            yield _IF_EQUAL, len(_FAMILIES) - place, 0, family
        yield _RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT
        yield _RETURN, 0, 0, _ALLOW

    return b"".join(_LINE.pack(*line) for line in lines())
