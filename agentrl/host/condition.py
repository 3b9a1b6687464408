"""The condition of the host agent, for probes: `python -m daemons.host --probe ready`.

The agent writes its condition to a file and repeats that every two seconds. So a probe needs no socket, and an agent
whose loop is blocked cannot look healthy.

Invariants:
- *live*: the process of the agent lives and its loop runs.
- *ready*: it is live, the coordinator has accepted it as this host, and it is not leaving.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from agentrl.host.agent_lock import read_agent_file

FILE = "condition.json"
LIVE_WITHIN_S = 60.0
"""This long, because a failed probe ends the container with all its units, and a busy machine must not cause that."""
READY_WITHIN_S = 20.0


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the file."""

    at: float
    """Seconds since the boot of the machine."""
    joined: bool = False
    leaving: str = ""
    trouble: str = ""
    """The reason why it has not joined, as far as it knows."""


class ConditionFile:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def write(self, *, joined: bool, leaving: str, trouble: str) -> None:
        """Writes the condition. A full disk is reported elsewhere; here the file becomes old, and the probe reports
        that."""
        condition = Condition(since_boot_s(), joined, leaving, "" if joined else trouble)
        draft = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            draft.write_bytes(msgspec.json.encode(condition))
            draft.replace(self._path)


def since_boot_s() -> float:
    """A clock that cannot be set, and that all processes of the machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def why_not_live(state_dir: Path, host: str) -> str:
    """Why the agent is not live; empty if it is."""
    agent = read_agent_file(state_dir, host)
    if agent is None or not agent.identity.alive():
        return f"No host agent of {host} lives here."
    age_s = since_boot_s() - _read(state_dir, host).at
    return f"The loop of the host agent of {host} stands still since {age_s:.0f} s." if age_s > LIVE_WITHIN_S else ""


def why_not_ready(state_dir: Path, host: str) -> str:
    """Why the agent is not ready; empty if it is."""
    if why := why_not_live(state_dir, host):
        return why
    found = _read(state_dir, host)
    if found.leaving:
        return f"Host {host} leaves: {found.leaving}."
    if not found.joined:
        return f"Host {host} has not joined the run: {found.trouble or 'no coordinator answers.'}"
    age_s = since_boot_s() - found.at
    return f"The host agent of {host} is {age_s:.0f} s late." if age_s > READY_WITHIN_S else ""


def _read(state_dir: Path, host: str) -> Condition:
    try:
        return msgspec.json.decode((state_dir / "hosts" / host / FILE).read_bytes(), type=Condition)
    except (OSError, msgspec.DecodeError):
        # An agent that has just started has not written it yet.
        return Condition(since_boot_s())
