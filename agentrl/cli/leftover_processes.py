"""Finds and ends the processes of a run on this host, without its coordinator.

Invariants:
- A scan that could not examine every process reports that (`unproven`) or raises NotProvenError.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TypeVar

from agentrl.client.run_processes import RunProcess
from agentrl.config import paths
from agentrl.config.this_host import known_name
from agentrl.errors import NotProvenError
from agentrl.protocol.messages import ScanReport

T = TypeVar("T")
_SCAN_WITHIN_S = 60.0


async def scan(uuid: str, state_dir: Path, *, kill: bool = False) -> ScanReport:
    """Examine every process of this host. Raises NotProvenError if that fails."""
    return await _scanned(ScanReport, uuid, "--host", known_name(state_dir), "--json", *(["--kill"] if kill else []))


async def runs_without_files() -> dict[str, str]:
    """The uuids of runs with living processes whose state directories were deleted, with the names of the runs."""
    home, known = paths.home(), {run.uuid for run in paths.list_runs()}
    found = await _scanned(dict[str, str], "--below", str(home))
    names = {uuid: Path(state_dir).name for uuid, state_dir in found.items() if uuid not in known}
    return {uuid: name for uuid, name in names.items() if paths.is_run_name(name)}


async def _scanned(kind: type[T], *arguments: str) -> T:
    """The output of the program that reads the processes of this host."""
    import msgspec

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentrl.host.process_scan", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, problems = await asyncio.wait_for(process.communicate(), _SCAN_WITHIN_S)
        return msgspec.json.decode(out, type=kind)
    except TimeoutError:
        raise NotProvenError(f"The scan of this host did not end within {_SCAN_WITHIN_S:.0f} s.") from None
    except msgspec.DecodeError:
        last = problems.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        raise NotProvenError(f"The scan of this host failed: {last[0]}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def scan_until_empty(uuid: str, state_dir: Path, within_s: float) -> ScanReport:
    """Scan until no process is found, for at most this time, because processes need a moment to end."""
    deadline = time.monotonic() + within_s
    while True:
        report = await scan(uuid, state_dir)
        if not report.found or time.monotonic() > deadline:
            return report
        await asyncio.sleep(0.2)


async def until_gone(keepers: list[RunProcess], within_s: float | None = None) -> list[RunProcess]:
    """Wait until these processes have ended; returns those that have not."""
    deadline = None if within_s is None else time.monotonic() + within_s
    while True:
        left = [keeper for keeper in keepers if keeper.alive]
        if not left or (deadline is not None and time.monotonic() > deadline):
            return left
        await asyncio.sleep(0.05)


async def end(keepers: list[RunProcess], grace_s: float = 5.0) -> list[RunProcess]:
    """End agents without a coordinator by SIGTERM, then SIGKILL; returns those that live on."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for keeper in keepers:
            _signal(keeper, number)
        keepers = await until_gone(keepers, grace_s)
    return keepers


def _signal(keeper: RunProcess, number: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(keeper.pid)
    except ProcessLookupError:
        return
    try:
        # The handle comes before the check of the start time, so a reused pid is never hit.
        if keeper.alive:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
