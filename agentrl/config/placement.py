"""Defines where the agents of the other hosts run: `placement` in the run file.

Invariants:
- A run has one placement. Without one, a person starts the agents of other hosts (`agentrl daemon host`).
- Nothing here is a secret: a private key is named by its path, and the placement itself distributes keys of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentrl.config.field_types import Flag, Seconds, Section, Words
from agentrl.config.hosts import Host

_Port = Annotated[int, Field(strict=True, ge=0, le=65535)]


class Ssh(Section):
    """Agents that are started over OpenSSH. `node` of a host is its destination; default: the name of the host."""

    user: str = ""
    """The user on the host. Empty: as set in `~/.ssh/config`."""
    port: _Port = 0
    """The port of its sshd; 0: as set in `~/.ssh/config`."""
    identity: str = ""
    """The file with the private key, relative to the run file. Empty: the default keys and those of an ssh agent."""
    config: str = ""
    """A configuration file for ssh instead of `~/.ssh/config`, relative to the run file."""
    options: Words = ()
    """More options of ssh as in its configuration, such as `ProxyJump=gate`."""
    python: str = ""
    """The Python on the host that has agentrl installed. Empty: the path of the Python of the coordinator."""
    connect_s: Seconds = 10.0
    """How long a connection may take."""


class SlurmComponent(Section):
    """One component of a heterogeneous job."""

    hosts: Words
    """The hosts that each get a node of this component: names of hosts, or the common name of several."""
    options: Words = ()
    """Options of sbatch for this component, such as `--gres=gpu:8`."""


class Slurm(Section):
    """Agents on the nodes of a Slurm job: the job in which `agentrl up` runs, or a job that it submits."""

    options: Words = ()
    """Options of sbatch for the job, such as `--partition=gpu`, `--time=12:00:00`."""
    components: tuple[SlurmComponent, ...] = ()
    """Makes the job heterogeneous: each host is in one component, which has its own options."""
    requeue: Flag = True
    """Whether the job is queued again after a preemption, at its time limit or if a node fails."""
    drain_s: Annotated[int, Field(strict=True, ge=0, le=86_400)] = 120
    """How long its hosts get to finish their work before the end of the job or after the warning of a preemption."""
    python: str = ""
    """The Python on the nodes that has agentrl installed. Empty: the path of the Python of the coordinator."""
    start_s: Seconds = 60.0
    """How long the start of an agent on a node may take."""


class RayBundle(Section):
    """The resources that a host takes of its Ray node."""

    hosts: Words = ()
    """The hosts that each take this much: names of hosts, or the common name of several."""
    cpus: Annotated[float, Field(ge=0)] = 1.0
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of each host. Its agent sees only these."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = {}  # noqa: RUF012
    """Custom resources, with the names that `ray start --resources` uses."""


class Ray(Section):
    """Agents in actors of a Ray cluster, one in each bundle of a placement group."""

    address: str = "auto"
    """`auto` if the coordinator is on a node of the cluster, its HOST:PORT, or `ray://HOST:10001`."""
    strategy: Literal["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"] = "STRICT_SPREAD"
    """How hosts share nodes. By default no two hosts of this run share a node."""
    bundles: tuple[RayBundle, ...] = ()
    """The resources of hosts. A host that no bundle names takes one CPU."""
    drain_s: Annotated[int, Field(strict=True, ge=1, le=86_400)] = 60
    """How long a host has to finish its work when its actor has ended."""
    lost_s: Seconds = 300.0
    """After this time a node that Ray has lost counts as gone. Then even units that must not run twice start
    elsewhere."""
    python: str = ""
    """The Python on the nodes that has agentrl installed. Empty: the path of the Python of the coordinator."""
    start_s: Seconds = 60.0
    """How long the start of an agent on a node may take."""

    def of(self, host: str) -> RayBundle:
        """A word names a host, or all hosts of a `count`."""
        kind = host.rpartition("-")[0]
        return next((each for each in self.bundles if host in each.hosts or kind in each.hosts), RayBundle())


class Placement(Section):
    """How the agents of the hosts in `hosts` are started. A word, such as `ssh`, takes the defaults of its section."""

    ssh: Ssh | None = None
    """Over OpenSSH."""
    slurm: Slurm | None = None
    """In a job of Slurm."""
    ray: Ray | None = None
    """In a Ray cluster."""

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return {} if value == "local" else {value: {}}

    @model_validator(mode="after")
    def _one(self) -> Placement:
        if len(given := self._given()) > 1:
            raise ValueError(f"takes one of {', '.join(given)}: a run has one placement")
        return self

    def _given(self) -> list[str]:
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """`local` if a person starts the agents of other hosts."""
        return next(iter(self._given()), "local")


MOST_NAMED = 6


def is_meant(host: str, word: str) -> bool:
    """Whether a word of a component means the host: its own name, or the common name of the hosts of its `count`."""
    return word in (host, host.rpartition("-")[0])


def starts(placement: Placement, hosts: Mapping[str, Host]) -> tuple[str, ...]:
    """A sentence about the hosts that will be started; empty if there are none."""
    if placement.kind == "local" or not hosts:
        return ()
    named = [f"{name} ({host.node})" if host.node else name for name, host in hosts.items()]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return (f"{placement.kind} starts the hosts {', '.join(named[:MOST_NAMED])}{more}",)
