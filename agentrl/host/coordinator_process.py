"""Starts the coordinator, and finds a living one.

The daemon starts the coordinator before it imports the rest of the host agent, because both take a while to import.
So this module imports little: no asyncio, no messages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.host import procfs


class CoordinatorIdentity(msgspec.Struct, frozen=True):
    """The part of coordinator.json that identifies the process."""

    pid: int
    start_ticks: int
    boot_id: str


def living_coordinator(state_dir: Path) -> procfs.Identity | None:
    """The coordinator that coordinator.json names, if that process lives."""
    try:
        coordinator_identity = msgspec.json.decode(
            (state_dir / "coordinator.json").read_bytes(), type=CoordinatorIdentity
        )
    except (OSError, msgspec.DecodeError):
        return None
    identity = procfs.Identity(coordinator_identity.pid, coordinator_identity.start_ticks, coordinator_identity.boot_id)
    return identity if identity.alive() else None


def coordinator_command(state_dir: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "daemons.coordinator", "--state-dir", str(state_dir))


def start_coordinator(command: Sequence[str], run: str, log_path: Path) -> int:
    """Starts the coordinator and returns the pid of the new child, which the caller must reap. Raises OSError."""
    env = procfs.without_marks(os.environ) | {"AGENTRL_RUN": run}
    output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    finally:
        os.close(output)
    process.returncode = 0  # Popen must neither reap it nor warn about it.
    return process.pid
