"""The filter of system calls, run by a small interpreter of its instructions for both architectures."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from agentrl.sandboxes import system_calls

ALLOWED, DENIED, MISSING = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)
NEW_USER, NEW_NETWORK, VFORK = 0x10000000, 0x40000000, 0x4000
UNIX, NO_FAMILY = 1, 0x50000 | errno.EAFNOSUPPORT


def outcome(machine: tuple[str, int], number: int, argument: int = 0, *, audit: int = 0) -> int:
    """What the kernel does with a call."""
    data = struct.pack("=IIQQ", number, audit or machine[1], 0, argument)
    lines = list(struct.iter_unpack("=HBBI", system_calls.program(machine[0])))
    place = value = 0
    while True:
        code, if_true, if_false, constant = lines[place]
        place += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, constant)
            case 0x06:
                return int(constant)
            case _:
                holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
                place += if_true if holds else if_false


@pytest.mark.parametrize(("machine", "column"), [(X86, 0), (ARM, 1)])
def test_denied_calls_fail_and_others_pass(machine: tuple[str, int], column: int) -> None:
    denied = {numbers[column] for numbers in system_calls._DENIED.values()}
    missing = {numbers[column] for numbers in system_calls._MISSING.values()}
    for number in range(600):
        expected = DENIED if number in denied else MISSING if number in missing else ALLOWED
        assert outcome(machine, number, UNIX) == expected, number


@pytest.mark.parametrize(("machine", "clone", "unshare"), [(X86, 56, 272), (ARM, 220, 97)])
def test_processes_are_made_without_namespaces(machine: tuple[str, int], clone: int, unshare: int) -> None:
    assert outcome(machine, clone, VFORK) == ALLOWED
    for number in (clone, unshare):
        for namespace in (NEW_USER, NEW_NETWORK):
            assert outcome(machine, number, namespace | VFORK) == DENIED


def test_calls_of_another_architecture_do_not_exist() -> None:
    write = 1
    assert outcome(X86, write, audit=0x40000003) == MISSING
    assert outcome(ARM, write, audit=X86[1]) == MISSING
    assert outcome(X86, 0x40000000 | write) == MISSING


@pytest.mark.parametrize(("machine", "number"), [(X86, 41), (ARM, 198)])
def test_sockets_have_listed_address_families_only(machine: tuple[str, int], number: int) -> None:
    allowed = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    for family in range(64):
        assert outcome(machine, number, family) == (ALLOWED if family in allowed else NO_FAMILY), family
