"""Dumps the stacks of processes.

SIGUSR2 goes only to a process whose spec uses the unit runtime and whose stacks file exists, because the signal kills a
process without a handler. For all others the kernel's view of the stacks is shown.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from agentrl.host import procfs
from agentrl.host.child_processes import Process

_MOST_BYTES = 256 << 10
_MOST_THREADS = 64
WITHIN_S = 3.0
_POLL_S = 0.02
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible call",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended, not reaped",
    "I": "idle",
}


def stacks_file(run_dir: Path, incarnation: str) -> Path:
    """The file that faulthandler in the unit runtime writes; it exists after the handler is registered."""
    return run_dir / "stacks" / f"{incarnation}.txt"


async def of_process(process: Process, run_dir: Path, incarnation: str, *, speaks: bool) -> str:
    """The stacks of one process, in the best available form."""
    path = stacks_file(run_dir, incarnation)
    if not speaks:
        why = "It does not use the unit runtime, so only the kernel was asked."
    elif not path.exists():
        why = "It has not prepared itself to write its stacks."
    elif text := await _by_faulthandler(process, path):
        return text
    else:
        why = f"It did not write its stacks within {WITHIN_S:g} s."
    return f"{why}\n{by_kernel(process.pid)}"


async def _by_faulthandler(process: Process, path: Path) -> str:
    before = _size(path)
    if not process.signal(signal.SIGUSR2):
        return ""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WITHIN_S
    size, steady = before, 0
    while loop.time() < deadline and steady < 3:
        await asyncio.sleep(_POLL_S)
        now = _size(path)
        steady = steady + 1 if now == size and now > before else 0
        size = now
    return _text_from(path, max(before, size - _MOST_BYTES))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text_from(path: Path, offset: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def by_kernel(pid: int) -> str:
    """The state of every thread in words, with the kernel function or system call that it waits in."""
    try:
        threads = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return "It has ended."
    lines = [f"{procfs.command(pid)} (pid {pid}, {len(threads)} threads)"]
    lines += [_thread(pid, tid) for tid in threads[:_MOST_THREADS]]
    if len(threads) > _MOST_THREADS:
        lines.append(f"and {len(threads) - _MOST_THREADS} more threads")
    return "\n".join(lines)


def _thread(pid: int, tid: int) -> str:
    base = f"/proc/{pid}/task/{tid}"
    stat = procfs.read_bytes(f"{base}/stat").rpartition(b")")[2].split()
    state = stat[0].decode() if stat else "?"
    name = procfs.read_bytes(f"{base}/comm").decode(errors="replace").strip()
    words = [f"thread {tid} [{name}] {_STATES.get(state, state)}"]
    waits_in = procfs.read_bytes(f"{base}/wchan").decode(errors="replace").strip()
    if waits_in and waits_in != "0":
        words.append(f"in the kernel function {waits_in}")
    call = procfs.read_bytes(f"{base}/syscall").split()
    if call and call[0].isdigit():
        words.append(f"in system call {call[0].decode()}")
    kernel_stack = procfs.read_bytes(f"{base}/stack").decode(errors="replace").strip()
    if kernel_stack:
        words.append("kernel stack: " + " < ".join(line.split()[-1] for line in kernel_stack.splitlines()[:8]))
    return ", ".join(words)
