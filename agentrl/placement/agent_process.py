"""Starts, finds and ends host agents on this machine.

Invariants:
- An agent has a session of its own and writes to files, so it survives the terminal and the process that started it.
- Two starts at the same time lead to one agent, because the second finds the lock.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import AgentrlError, ConflictError, DiskError, ExitCode
from agentrl.host import procfs
from agentrl.host.agent_lock import AgentFile, read_agent_file
from agentrl.host.log_files import private

START_WITHIN_S = 90.0
END_WITHIN_S = 10.0
_POLL_S = 0.01


def living_agent(state_dir: Path, host: str) -> AgentFile | None:
    known = read_agent_file(state_dir, host)
    return known if known is not None and known.identity.alive() else None


def agent_command(state_dir: Path, run_dir: Path, run: str, host: str, arguments: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "daemons.host", "--state-dir", str(state_dir), "--run-dir", str(run_dir)]
    return [*command, "--name", host, "--run", run, *arguments]


def agent_environment(run: str, host: str) -> dict[str, str]:
    own = {procfs.MARK_RUN.decode(): run, procfs.MARK_HOST.decode(): host}
    return procfs.without_marks(os.environ) | own


def start_agent(state_dir: Path, run_dir: Path, run: str, host: str, arguments: Sequence[str]) -> AgentFile:
    """Start the agent unless it lives, and wait until it does. Raises ConflictError if another start was first and its
    agent does not live yet."""
    if known := living_agent(state_dir, host):
        return known
    command = agent_command(state_dir.absolute(), run_dir.absolute(), run, host, arguments)
    process = _spawn(command, state_dir / "hosts" / host, run, host)
    try:
        return _await(state_dir, host, process, time.monotonic() + START_WITHIN_S)
    finally:
        # The agent outlives this process, and Popen must not warn about that.
        process.returncode = process.returncode if process.returncode is not None else 0


def end_agent(state_dir: Path, host: str) -> None:
    """End the agent if it lives; its units live on. Raises AgentrlError if it does not end."""
    known = read_agent_file(state_dir, host)
    if known is None:
        return
    deadline = time.monotonic() + END_WITHIN_S
    procfs.kill_exactly(known.pid, known.start_ticks, signal.SIGTERM)
    while known.identity.alive():
        if time.monotonic() > deadline:
            raise AgentrlError(f"The host agent of {host} (process {known.pid}) does not end.")
        time.sleep(_POLL_S)


def _spawn(command: list[str], folder: Path, run: str, host: str) -> subprocess.Popen[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(folder / "agent.log", "ab", opener=private) as output:
            return subprocess.Popen(
                command,
                env=agent_environment(run, host),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except OSError as failed:
        raise DiskError(f"The host agent of {host} cannot be started: {failed.strerror}.") from failed


def _await(state_dir: Path, host: str, process: subprocess.Popen[bytes], deadline: float) -> AgentFile:
    log = state_dir / "hosts" / host / "agent.log"
    while time.monotonic() < deadline:
        if known := living_agent(state_dir, host):
            return known
        code = process.poll()
        if code == ExitCode.CONFLICT:
            raise ConflictError(f"Another host agent of {host} was started at the same moment.")
        if code is not None:
            raise AgentrlError(f"The host agent of {host} ended with {code}; {log} has the reason.")
        time.sleep(_POLL_S)
    raise AgentrlError(
        f"The host agent of {host} did not come up within {START_WITHIN_S:g} s; {log} shows its progress."
    )
