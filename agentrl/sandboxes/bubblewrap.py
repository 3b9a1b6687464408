"""Builds the command line that runs a tool server in namespaces of its own, by bubblewrap.

Invariants:
- The server sees only a read-only system, the files of its program, and what the operator named.
- It has no capability, no network unless allowed, sees only its own processes, and ends with the toolbox.
- The system calls that `system_calls.py` denies fail.
- Secrets are never in the arguments, which every user of the host may read: the environment is inherited.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl.config.tool_sandbox import Sandbox
from agentrl.sandboxes import system_calls
from agentrl.sandboxes.visible_files import SETTINGS, SYSTEM, Rule

INSTALL = "install the package bubblewrap (`apt-get install bubblewrap`)"
HOME = "/tmp/home"
"""The private home directory; it ends with the process."""
_TRY_WITHIN_S = 10.0
_INSIDE_ID = "1000"
"""Root outside is not root inside, because programs behave differently if they find that they are root."""


@functools.cache
def problem() -> str:
    """Empty if bubblewrap works here, else a clause that says why not and what to do."""
    if shutil.which("bwrap") is None:
        return f"bubblewrap is not installed; {INSTALL}"
    if shutil.which("prlimit") is None:
        return "prlimit is not installed; install the package util-linux"
    complaint = _complaint_of_trial()
    if not complaint:
        return ""
    return (
        f"bubblewrap may not create namespaces here ({complaint}); allow user namespaces (sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0, kernel.unprivileged_userns_clone=1; in Docker: --security-opt "
        "seccomp=unconfined)"
    )


@functools.cache
def problem_of_filter() -> str:
    """Empty if system calls can be filtered here, else a clause that says why not and what to do."""
    if unknown := system_calls.problem():
        return unknown
    with system_calls.filter_file() as file:
        complaint = _complaint_of_trial(file.fileno())
    if not complaint:
        return ""
    return f"system calls cannot be filtered here ({complaint}); use a kernel with CONFIG_SECCOMP_FILTER"


def _complaint_of_trial(filter_of_calls: int = -1) -> str:
    """Run a program that does nothing. Returns the last line of an error."""
    trial = [*_isolated(network=False, filter_of_calls=filter_of_calls), *_system()]
    trial += ["--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
    passed = [filter_of_calls] if filter_of_calls >= 0 else []
    try:
        done = subprocess.run(
            trial, capture_output=True, text=True, timeout=_TRY_WITHIN_S, check=False, pass_fds=passed
        )
    except (OSError, subprocess.TimeoutExpired) as broken:
        return str(broken)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]


def command_line(
    command: Sequence[str], cwd: Path, sandbox: Sandbox, rules: Sequence[Rule], *, filter_of_calls: int = -1
) -> tuple[str, ...]:
    """The command that runs `command` in its sandbox. The environment is inherited from the process that starts it.

    `filter_of_calls` is the descriptor of the filter of system calls.
    """
    size = str(sandbox.file_size)
    return (
        *_isolated(network=sandbox.has_network_of_host, filter_of_calls=filter_of_calls),
        *_system(),
        *_settings(network=sandbox.has_network_of_host),
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
        *("--dev", "/dev", "--size", size, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--size", size, "--perms", "1777", "--tmpfs", "/tmp", "--dir", HOME),
        *(word for path in sandbox.private for word in ("--size", size, "--perms", "0755", "--tmpfs", path)),
        *(word for rule in rules for word in _mounted(rule)),
        *(word for rule in rules if _is_cover(rule) for word in ("--remount-ro", str(rule.path))),
        *("--dir", str(cwd), "--chdir", str(cwd), "--remount-ro", "/"),
        "--",
        *_limits(sandbox),
        *command,
    )


def _isolated(*, network: bool, filter_of_calls: int) -> Iterator[str]:
    yield from (
        shutil.which("bwrap") or "bwrap",
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    )
    if not network:
        yield "--unshare-net"
    if os.geteuid() == 0:
        yield from ("--uid", _INSIDE_ID, "--gid", _INSIDE_ID)
    yield from ("--hostname", "sandbox", "--cap-drop", "ALL", "--die-with-parent", "--new-session")
    if filter_of_calls >= 0:
        yield from ("--seccomp", str(filter_of_calls))
    if _closes_user_namespaces():
        yield "--disable-userns"


@functools.cache
def _closes_user_namespaces() -> bool:
    """Versions before 0.8 cannot forbid user namespaces inside."""
    try:
        shown = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, timeout=_TRY_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "--disable-userns" in shown.stdout + shown.stderr


def _system() -> Iterator[str]:
    for place in SYSTEM:
        if os.path.islink(place):
            yield from ("--symlink", os.readlink(place), place)
        elif os.path.isdir(place):
            yield from ("--ro-bind", place, place)


def _settings(*, network: bool) -> Iterator[str]:
    for name in SETTINGS:
        path = f"/etc/{name}"
        if name == "resolv.conf" and not network:
            continue
        if os.path.islink(path) and os.path.realpath(path).startswith(tuple(f"{place}/" for place in SYSTEM)):
            # Programs read the time zone from the target of the link /etc/localtime.
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind-try", path, path)


def _mounted(rule: Rule) -> tuple[str, ...]:
    path = str(rule.path)
    if rule.access != "nothing":
        return ("--bind" if rule.access == "write" else "--ro-bind", path, path)
    if _is_cover(rule):
        return ("--perms", "0555", "--size", "65536", "--tmpfs", path)
    return ("--ro-bind", "/dev/null", path)


def _is_cover(rule: Rule) -> bool:
    """An empty directory, in which a deeper path may be visible."""
    return rule.access == "nothing" and rule.path.is_dir()


def _limits(sandbox: Sandbox) -> Iterator[str]:
    # The limit covers written memory (RLIMIT_DATA), because node and others reserve far more addresses than they use.
    yield from (
        shutil.which("prlimit") or "prlimit",
        f"--data={sandbox.memory}",
        f"--nproc={sandbox.processes}",
        f"--nofile={sandbox.open_files}",
    )
    yield from (f"--fsize={sandbox.file_size}", "--core=0")
    if sandbox.cpu_s:
        yield f"--cpu={sandbox.cpu_s}"
    yield "--"
