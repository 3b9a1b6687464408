"""Reads the logs and events of a run that is not up from its files on this host.

Invariants:
- The methods have the names, arguments and results of the client.
- The methods change no file.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agentrl.client.run_processes import left_up, read_json
from agentrl.config import paths
from agentrl.config.logfiles import LogFiles
from agentrl.errors import DiskError, UnknownNameError
from agentrl.protocol import wire
from agentrl.protocol.control_commands import Happenings
from agentrl.protocol.messages import LogChunk


class OfflineRun:
    """Logs in the run directory and the journal in the state directory of one run."""

    def __init__(self, run: paths.RunFile) -> None:
        self.name = run.name
        self.run_dir = Path(run.run_dir)
        self.state_dir = paths.state_dir(run.name)
        self._logs = LogFiles(self.run_dir)

    @classmethod
    def find(cls, name: str | None) -> OfflineRun | None:
        """The named run, else the only run of this host, else the only one that was not taken down; None if several
        runs fit."""
        known = [run for run in paths.list_runs() if not run.broken and name in (None, run.name)]
        if len(known) > 1:
            known = [run for run in known if left_up(paths.state_dir(run.name))]
        return cls(known[0]) if len(known) == 1 else None

    @property
    def has_store(self) -> bool:
        """Whether the run has records; they can be read while its store is up."""
        environments = read_json(self.run_dir / paths.IN_FORCE).get("environments")
        return bool(environments)

    async def read_logs(self, unit: str, *, incarnation: int = 0, offset: int = -65536, limit: int = 65536) -> LogChunk:
        """Like `Client.read_logs`; 0 is the newest incarnation with a log on this host."""
        try:
            return await asyncio.to_thread(self._logs.read, unit, incarnation, offset, limit)
        except FileNotFoundError:
            there = ", ".join(f"{unit}.{known}" for known in self._logs.incarnations(unit))
            raise UnknownNameError(
                f"There is no such log of {unit} in {self.run_dir}.", hint=f"Logs exist of {there}." if there else ""
            ) from None

    async def events(self, kinds: Iterable[str] = (), *, after_at: float = 0.0, limit: int = 200) -> Happenings:
        """Like `Client.events`."""
        # Clients may not import the package that reads the journal, so they run its program.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentrl.control.offline_events", "--state-dir", str(self.state_dir)),
            *(f"--kind={kind}" for kind in kinds),
            *("--after-at", str(after_at), "--limit", str(limit)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, why_not = await process.communicate()
        if process.returncode:
            reason = why_not.decode(errors="replace").strip()
            raise DiskError(f"The journal in {self.state_dir} cannot be read: {reason}")
        return wire.decode_as(Happenings, msgspec.Raw(printed))
