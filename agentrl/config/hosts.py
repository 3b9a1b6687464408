"""Defines the hosts of a run in the configuration: their names and labels, the groups that run there, and how other
hosts reach them.

Invariants:
- A word in `hosts` of a group means one host or one label, never both.
- Without declared hosts, every word is the name of a host.
- Each of several equal hosts (`count`) has its own name; their common name is a label of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field

from agentrl.config.field_types import Bytes, Section, Words

MAY_RUN = ("engine", "sampler", "toolbox", "trainer")
"""Groups of the data plane that may run on other hosts than the coordinator's. The others need its disk."""
_Port = Annotated[int, Field(strict=True, ge=0, le=65535)]


class Host(Section):
    """A host of the run."""

    labels: Words = ()
    """Words for properties of the host, such as `gpu`. A group's `hosts` names hosts or labels."""
    runs: Words = ()
    """Groups of the data plane that run here: `engine`, `sampler`, `toolbox`, `trainer`. A group that no host names
    runs on the host of the coordinator; a group that several hosts name is spread over them."""
    address: str = ""
    """Name or address by which the other hosts reach it. Empty: the address from which it reaches the coordinator."""
    bind: str = ""
    """The address on which its tunnel listens. Empty: `address`."""
    private: str = ""
    """Address of this host in a private network, where ranks of gangs communicate with those of other hosts **without
    encryption or keys**, as torch and NCCL do. Empty: no rank here communicates with ranks on other hosts."""
    port: _Port = 0
    """The port of its tunnel; 0: any free port."""
    count: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    """Stands for this many hosts: NAME-0, NAME-1 and so on; NAME is a label of each. 0: one host of this name."""
    node: str = ""
    """The machine for the placement: a destination of ssh, a node of Slurm. Empty: its name for ssh, any node of the
    job for Slurm."""
    disk: str = ""
    """The directory for the state of its agent (ledger, key, secrets), on a disk that no other host shares. Empty: a
    directory in `/var/tmp` for this user and run, if a placement starts it."""
    dir: str = ""
    """The run's directory on that host, if a placement starts its agent and the host does not share that of the run.
    Empty: the same path."""
    cache: Bytes = 0
    """The most bytes of weights and other files from other hosts that it keeps, if it does not share the run's
    directory: bytes, or text such as `200GiB`; 0 is 100 GiB."""


def all_hosts(hosts: Mapping[str, Host]) -> dict[str, Host]:
    """Every host by its name, including each host of a `count`."""
    found: dict[str, Host] = {}
    for name, host in hosts.items():
        found |= {f"{name}-{number}": _one_of(name, host, number) for number in range(host.count)} or {name: host}
    return found


def _one_of(name: str, host: Host, number: int) -> Host:
    own = {key: f"{path}/{name}-{number}" if path else "" for key, path in (("disk", host.disk), ("dir", host.dir))}
    return host.model_copy(update={"count": 0, "labels": (*host.labels, name), **own})


def names_of(words: Iterable[str], hosts: Mapping[str, Host]) -> tuple[str, ...]:
    """The names of the hosts that the words mean, each once."""
    found: dict[str, None] = {}
    for word in words:
        labelled = [name for name, host in hosts.items() if word in host.labels]
        found |= dict.fromkeys(labelled or [word])
    return tuple(found)


def known_words(hosts: Mapping[str, Host]) -> tuple[str, ...]:
    """All names and labels."""
    return tuple(dict.fromkeys([*hosts, *(label for host in hosts.values() for label in host.labels)]))


def hosts_that_run(group: str, hosts: Mapping[str, Host]) -> tuple[str, ...]:
    """The hosts that run this group; empty for a group that runs on the host of the coordinator."""
    return tuple(name for name, host in hosts.items() if group in host.runs)


def private_addresses(hosts: Mapping[str, Host]) -> dict[str, str]:
    """The addresses at which ranks of gangs on several hosts communicate."""
    return {name: host.private for name, host in hosts.items() if host.private}


def need_tunnels(hosts: Mapping[str, Host]) -> bool:
    """Whether services on different hosts call each other."""
    return any(host.runs for host in hosts.values())
