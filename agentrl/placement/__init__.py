"""Starts the host agents on other machines, and reports their state.

`placement` in the run file chooses a backend.

A backend starts and ends agents and knows nothing of their units, so an agent behaves the same in every place.

How to add one (`ssh` is the shortest example):

1. A section in `agentrl/config/placement.py`, and a field of `Placement` there with the name of the backend.
2. A class with the methods of `Placement` below, and an entry in `backends.py`, which imports it late.
3. On each machine the backend starts `python -m agentrl.placement.arrival` with an `arrival.Order` that holds the
   `Invitation` as JSON on standard input. That program checks the version, keeps the key in a file of mode 0600 on the
   disk of that machine, starts the agent and prints one line of JSON (`arrival.Arrived`, see `remote_python.py`). It
   ends when the agent lives; with `--stay` it becomes the agent, for schedulers whose job is the started process.
4. A `Site` in `tests/placement/sites.py`: every test of the contract (`test_contract.py`) then runs on it.

The coordinator calls `ensure` whenever a host of the run file is not connected, `describe` while one is silent, and
`release` at the end of `down` (`agentrl/control/placed_hosts.py`). Each call is a process of its own (`python -m
agentrl.placement`): it may block, import what it likes, and die.

Invariants that hold for every backend (each is a test of the contract):
- An agent that lives is not started again, also if two starts happen at once.
- An agent outlives the process that started it, and a later process finds it: a backend keeps its state in `notes`, not
  in memory.
- Secrets go to the machine over the standard input of the started process; never by an argument, a log, an environment
  variable or a disk that machines share.
- A host is `GONE` only if the scheduler took its machine away with all processes on it. A host that is only silent is
  `LOST`.
- After `release` nothing of the host is left, or it raises and names what is.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec


class State(enum.StrEnum):
    """What a backend knows of a host."""

    STARTING = "starting"
    """It waits for a machine or for its agent, and needs no further action: a queued job, a pending pod."""
    ALIVE = "alive"
    LOST = "lost"
    """Its agent ended, or it cannot be reached; units may live there."""
    GONE = "gone"
    """Its machine was taken away with everything on it. The coordinator replaces its units at once, and its key is
    refused from then on."""


class Placed(msgspec.Struct, frozen=True, omit_defaults=True):
    """One host of a backend."""

    host: str
    state: State
    where: str = ""
    """Its place in the terms of the backend: a pid, a job step, a pod."""
    why: str = ""
    """A sentence if it is not alive: what happened and, if that is known, by whom."""
    hint: str = ""
    """What a person can do."""
    dismissed: bool = False
    """A person took the machine away: it is not started again before the next `up`."""

    @property
    def alive(self) -> bool:
        return self.state is State.ALIVE


class Invitation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the agent of a host reads from standard input. It contains a secret."""

    host: str
    run: str
    """The uuid."""
    version: str
    """The version of the coordinator's agentrl; the host must have the same version."""
    state_dir: str
    """A directory that only this host uses, on a disk that it does not share. Empty: one in /var/tmp."""
    run_dir: str
    coordinator: str
    """The address at which the host joins. This field and the next four are the content of a key file."""
    key_name: str
    public: str
    secret: str
    server_public: str
    leave_within_s: float = 0.0
    """If above 0, SIGTERM means that the machine will be taken away: the agent asks the coordinator to drain the host,
    and ends when no unit is left or after this time. If 0, SIGTERM ends only the agent, and units live on."""

    def __repr__(self) -> str:
        return f"Invitation({self.host!r})"


class HostRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A host that the run file wants."""

    host: str
    invitation: Invitation
    node: str = ""
    """The machine, in the terms of the backend. Empty: any."""


class HostRemains(msgspec.Struct, frozen=True):
    """What may be left of a run that is down on the machine of a host."""

    host: str
    node: str
    state_dir: str
    """Empty: one in /var/tmp."""
    run_dir: str
    wipe: bool
    """True: remove the data of the run, but not the identity of the host. False: remove the identity and the copies of
    files, but no results."""


class PlacedRun(msgspec.Struct, frozen=True):
    """The run, as a backend knows it."""

    uuid: str
    name: str
    state_dir: str
    """The coordinator's state directory. Backends keep their notes in its `placement/`."""


class Placement(Protocol):
    """The interface of a backend. The calls may block for some seconds; they never wait for a queue."""

    def ensure(self, wanted: Sequence[HostRequest]) -> tuple[Placed, ...]:
        """Start the agents of these hosts that are not running; the other hosts of the run stay as they are. Returns
        one answer for each host: its `why` says what failed. Raises AgentrlError if no host can be started."""

    def describe(self) -> tuple[Placed, ...]:
        """The state of every host that was started and not released."""

    def release(self, hosts: Sequence[str]) -> None:
        """End the agents of these hosts and give the machines back. All units must have ended before. Raises
        NotProvenError if something may be left, with the names of the hosts."""

    def clear(self, left: HostRemains) -> str:
        """Remove what is left on the machine of a host that was released. Returns why that is not possible."""
