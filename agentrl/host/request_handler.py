"""Handles the coordinator's requests to a host agent: ranges of logs, scans, stacks.

Invariants:
- A request may take long, so its work never runs on the loop that supervises.
- SIGUSR2 goes only to a process whose spec uses the unit runtime and whose stacks file exists, because the signal kills
  a process without a handler. For all others the kernel's view of the stacks is shown.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import UnknownNameError
from agentrl.host import process_scan, procfs
from agentrl.host.child_processes import Process
from agentrl.host.incarnation import Incarnation, Services
from agentrl.protocol.messages import DumpStacks, LogChunk, ReadLog, ScanReport, ScanRun, StackReport
from agentrl.protocol.specs import incarnation_name

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


_STACKS_CHARS = 1 << 20


class RequestHandler:
    def __init__(self, services: Services, incarnations: Mapping[str, Incarnation]) -> None:
        self._services = services
        self._incarnations = incarnations

    async def to(self, what: ReadLog | ScanRun | DumpStacks) -> LogChunk | ScanReport | StackReport:
        """The answer to a request. Raises AgentrlError or OSError if there is none."""
        match what:
            case ReadLog():
                return await self._log(what)
            case ScanRun():
                home, in_cgroups = self._services.home, self._services.cgroups.can_kill
                return await asyncio.to_thread(
                    process_scan.scan, home.run, home.host, kill=what.kill, control=False, in_cgroups=in_cgroups
                )
            case DumpStacks():
                return await self._stacks(what)

    async def _log(self, what: ReadLog) -> LogChunk:
        logs = self._services.logs
        try:
            return await asyncio.to_thread(logs.read, what.unit, what.incarnation, what.offset, what.limit)
        except FileNotFoundError:
            raise self._no_log(what) from None

    def _no_log(self, what: ReadLog) -> UnknownNameError:
        incarnation = self._incarnations.get(incarnation_name(what.unit, what.incarnation))
        if incarnation is not None and incarnation.alive:
            return UnknownNameError(
                f"The log of {incarnation.name} was removed while it runs: what it writes from now on is lost.",
                hint=f"`agentrl restart {what.unit}` starts a new one.",
            )
        host, numbers = self._services.home.host, self._services.logs.incarnations(what.unit)
        if what.incarnation < 0 and len(numbers) == 1:
            return UnknownNameError(
                f"{what.unit}.{numbers[0]} is the only incarnation of {what.unit} on {host}: there is no earlier one.",
                hint=f"`agentrl logs {what.unit}` shows its log.",
            )
        return UnknownNameError(f"{what.unit} has no such log on {host}.")

    async def _stacks(self, what: DumpStacks) -> StackReport:
        wanted = [
            incarnation
            for incarnation in self._incarnations.values()
            if incarnation.alive
            and (not what.units or incarnation.entry.unit in what.units or incarnation.name in what.units)
        ]
        texts = await asyncio.gather(*map(self._stack, wanted))
        # All stacks must fit into one message. The innermost frames come first, so the end is cut off.
        each = _STACKS_CHARS // max(1, len(wanted))
        return StackReport(
            host=self._services.home.host,
            stacks={incarnation.name: text[:each] for incarnation, text in zip(wanted, texts, strict=True)},
        )

    async def _stack(self, incarnation: Incarnation) -> str:
        process = incarnation.process
        if process is None:
            return "It has ended."
        return await of_process(
            process, self._services.home.run_dir, incarnation.name, speaks=incarnation.entry.spec.speaks
        )
