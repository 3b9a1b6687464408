"""The backend `local`: agents on this machine; also `python -m agentrl.placement.local --state-dir S ...`, which starts
the agent of the coordinator's own host.

The coordinator's own host needs no invitation: its agent starts the coordinator, which knows the agent by its process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.config.paths import read_run
from agentrl.config.this_host import this_host
from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.host.agent_lock import AgentFile
from agentrl.placement import HostRemains, HostRequest, Invitation, Placed, State
from agentrl.placement.agent_process import living_agent, start_agent
from agentrl.placement.arrival import Order, carry_out
from agentrl.placement.notes import Notes

_WITH_COORDINATOR = ("--with-coordinator",)


class LocalNote(msgspec.Struct, frozen=True):
    state_dir: str
    run: str


class LocalPlacement:
    """The agents of invited hosts, all on this machine."""

    def __init__(self, state_dir: Path) -> None:
        self._notes = Notes(state_dir, "local", LocalNote)

    def ensure(self, wanted: Sequence[HostRequest]) -> tuple[Placed, ...]:
        return tuple(self._ensure(one.invitation) for one in wanted)

    def describe(self) -> tuple[Placed, ...]:
        return tuple(_placed(host, Path(note.state_dir)) for host, note in sorted(self._notes.all().items()))

    def release(self, hosts: Sequence[str]) -> None:
        notes = self._notes.all()
        for host in hosts:
            if note := notes.get(host):
                carry_out(Order("end", host=host, run=note.run, state_dir=note.state_dir))
                self._notes.update({host: None})

    def clear(self, left: HostRemains) -> str:
        return "a person started its agent"

    def _ensure(self, invitation: Invitation) -> Placed:
        host = invitation.host
        try:
            arrived = carry_out(Order(invitation=invitation))
        except AgentrlError as failed:
            return Placed(host, State.LOST, why=failed.message, hint=failed.hint)
        self._notes.update({host: LocalNote(arrived.state_dir, invitation.run)})
        return _placed(host, Path(arrived.state_dir))


def _placed(host: str, state_dir: Path) -> Placed:
    if known := living_agent(state_dir, host):
        return Placed(host, State.ALIVE, f"process {known.pid}")
    return Placed(host, State.LOST, why="its agent has ended")


def start_own_agent(state_dir: Path, run_dir: Path, run: str) -> AgentFile:
    """Start the agent of the coordinator's own host, unless it lives."""
    return start_agent(state_dir, run_dir, run, this_host(state_dir).name, _WITH_COORDINATOR)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.placement.local", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    args = parser.parse_args()
    try:
        run = read_run(args.state_dir)
        if run is None:
            raise ConfigError(f"{args.state_dir} is not the state directory of a run: it has no run.json.")
        started = start_own_agent(args.state_dir, args.run_dir, run.uuid)
        print(f"host agent of {started.host}: process {started.pid}")
    except AgentrlError as failed:
        print(failed, file=sys.stderr)
        return failed.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
