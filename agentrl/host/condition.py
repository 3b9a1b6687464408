"""What the host agent says about itself to probes: `python -m daemons.host --probe ready`.

The agent writes its condition to a file and repeats that every two seconds. So a probe needs no socket, and an agent
whose loop stands still cannot look well.

Invariants:
- *live*: the process of the agent lives and its loop turns.
- *ready*: it is live, the coordinator has accepted it as this host, and it does not leave.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from agentrl.host.agent_lock import read_agent_file

FILE = "condition.json"
LIVE_WITHIN_S = 60.0
"""A probe that fails ends the container with all its units, so a busy machine must not fail it."""
READY_WITHIN_S = 20.0


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the file."""

    at: float
    """Seconds since the boot of the machine."""
    joined: bool = False
    leaving: str = ""
    trouble: str = ""
    """Why it has not joined, as far as it knows."""


class ConditionFile:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def write(self, *, joined: bool, leaving: str, trouble: str) -> None:
        """A disk without space is shown elsewhere; here the file becomes old, and the probe says so."""
        condition = Condition(since_boot_s(), joined, leaving, "" if joined else trouble)
        draft = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            draft.write_bytes(msgspec.json.encode(condition))
            draft.replace(self._path)


def since_boot_s() -> float:
    """A clock that nobody sets, and that all processes of the machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def why_not_live(state_dir: Path, host: str) -> str:
    """Empty if the agent is live."""
    agent = read_agent_file(state_dir, host)
    if agent is None or not agent.identity.alive():
        return f"No host agent of {host} lives here."
    age_s = since_boot_s() - _read(state_dir, host).at
    return f"The loop of the host agent of {host} stands still since {age_s:.0f} s." if age_s > LIVE_WITHIN_S else ""


def why_not_ready(state_dir: Path, host: str) -> str:
    """Empty if the agent is ready."""
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
