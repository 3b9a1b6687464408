"""Makes the group specs of a run from its configuration.

Invariants:
- The functions are pure.
- Equal configurations give equal specs.
- A group is stopped after the groups that need it, and MongoDB last.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from agentrl.config import sidecars
from agentrl.config.hosts import Host, names_of, private_addresses
from agentrl.config.run import RunConfig
from agentrl.control.commands import data_plane_groups
from agentrl.protocol.specs import GroupSpec, Probe, Resources, Role

MONGO_GROUP = "mongo"
MONGO_STOP_RANK = 100
_FIRST_STOP_RANK = 10


def specs_of(
    config: RunConfig, *, run_dir: str | os.PathLike[str], state_dir: str | os.PathLike[str], reading: bool = False
) -> tuple[GroupSpec, ...]:
    """All groups of the run, in the order of the configuration, the embedded database first. `reading`: the steward
    only answers queries."""
    ranks = stop_ranks({name: sidecar.after for name, sidecar in config.sidecars.items()})
    groups = tuple(
        _sidecar(name, sidecar, ranks[name], os.fspath(run_dir), config.all_hosts)
        for name, sidecar in config.sidecars.items()
    )
    mongo = (_mongo(os.fspath(state_dir)),) if config.has_mongo else ()
    return (*mongo, *data_plane_groups.groups_of(config, run_dir=os.fspath(run_dir), reading=reading), *groups)


def stop_ranks(after: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """The order of `down`: a group has a higher rank than the groups that need it. `after` has no circle."""
    waiters: dict[str, list[str]] = {name: [] for name in after}
    for name, others in after.items():
        for other in others:
            if other in waiters:
                waiters[other].append(name)
    open_waiters = {name: len(names) for name, names in waiters.items()}
    ranks = {name: _FIRST_STOP_RANK for name in after}
    settled = [name for name, number in open_waiters.items() if not number]
    # Begin with the groups that no other group needs. A rank is final when all groups that need it are settled.
    for name in settled:
        for other in dict.fromkeys(after[name]):
            if other in ranks:
                ranks[other] = max(ranks[other], ranks[name] + 1)
                open_waiters[other] -= after[name].count(other)
                if not open_waiters[other]:
                    settled.append(other)
    return {name: min(rank, MONGO_STOP_RANK - 1) for name, rank in ranks.items()}


def _sidecar(
    name: str, sidecar: sidecars.Sidecar, stop_rank: int, run_dir: str, hosts: Mapping[str, Host]
) -> GroupSpec:
    return GroupSpec(
        name=name,
        role=Role.SIDECAR,
        command=sidecar.command,
        count=sidecar.size,
        env=dict(sidecar.env),
        cwd=sidecar.cwd or run_dir,
        life=sidecar.life,
        speaks=sidecar.speaks,
        ready=_probe(sidecar.ready),
        live=_probe(sidecar.live),
        metrics=_probe(sidecar.metrics),
        after=sidecar.after,
        hosts=names_of(sidecar.hosts, hosts),
        spread=sidecar.spread,
        near=sidecar.near,
        resources=Resources(
            cpus=sidecar.resources.cpus,
            gpus=sidecar.resources.gpus,
            memory_max_bytes=sidecar.resources.memory_max,
        ),
        drain_grace_s=sidecar.drain_grace_s,
        term_grace_s=sidecar.term_grace_s,
        start_deadline_s=sidecar.start_deadline_s,
        orphan_lease_s=sidecar.orphan_lease_s,
        gang=bool(sidecar.ranks),
        ranks_per_host=sidecar.ranks_per_host,
        private=private_addresses(hosts) if sidecar.ranks else {},
        fenced=sidecar.fenced,
        stop_rank=stop_rank,
        log_max_bytes=sidecar.log_max,
        permission=sidecar.permission,
    )


def _probe(probe: sidecars.Probe | None) -> Probe | None:
    if probe is None:
        return None
    return Probe(
        exec=probe.exec,
        http=probe.http,
        tcp=probe.tcp,
        interval_s=probe.interval_s,
        timeout_s=probe.timeout_s,
        failures=probe.failures,
    )


def _mongo(state_dir: str) -> GroupSpec:
    return GroupSpec(
        name=MONGO_GROUP,
        role=Role.MONGO,
        command=("{python}", "-m", "daemons.mongo"),
        cwd=state_dir,
        speaks=True,
        drain_grace_s=30.0,
        term_grace_s=30.0,
        # A journal that was not closed cleanly is recovered before the server answers.
        start_deadline_s=180.0,
        # This is longer than the lease of any process that writes to it.
        orphan_lease_s=10_800.0,
        stop_rank=MONGO_STOP_RANK,
    )
