"""Warns the host agents of one Slurm job on this node that the job ends soon: `python -m agentrl.placement.slurm_leave
RUN`.

The batch script of the job starts it on every node when Slurm warns it (`--signal`, a preemption). The agents then ask
the coordinator to let their units finish.
"""

from __future__ import annotations

import os
import signal
import sys

from agentrl.errors import ExitCode
from agentrl.host import procfs

_JOB = "SLURM_JOB_ID"


def main() -> int:
    run, job = sys.argv[1], os.environ.get(_JOB, "")
    for pid, stat in procfs.all_stats().items():
        if (procfs.marks(pid) or {}).get(procfs.MARK_RUN) == run.encode() and _is_agent_of(pid, job):
            procfs.kill_exactly(pid, stat.start_ticks, signal.SIGTERM)
    return ExitCode.OK


def _is_agent_of(pid: int, job: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command, open(f"/proc/{pid}/environ", "rb") as environ:
            is_agent = b"daemons.host" in command.read().split(b"\0")
            return is_agent and f"{_JOB}={job}".encode() in environ.read().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
