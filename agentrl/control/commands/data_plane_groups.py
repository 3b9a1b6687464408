"""Makes the group specs of the data plane: steward, toolbox, engine, sampler, trainer.

Invariants:
- The functions are pure.
- A group is replaced if and only if a setting that its processes read at their start changed. The fields of the run
  file say who reads them (`read_by`).
- A group is ready before the groups that need it and stopped after them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from agentrl.config import readers
from agentrl.config.hosts import hosts_that_run, need_tunnels, private_addresses
from agentrl.config.run import RunConfig
from agentrl.config.secrets import variable_of
from agentrl.config.serialization import config_to_plain, secret_files
from agentrl.config.server_arguments import gpus_of
from agentrl.protocol.specs import GroupSpec, Life, Resources, Role
from agentrl.tracing import log_format

SETTINGS_VARIABLE = "AGENTRL_SETTINGS"
"""A digest of the settings that a role reads. A changed digest replaces its units."""

READ_ONLY = ("--read-only",)

STARTS_PROGRAMS = (Role.TOOLBOX, Role.SAMPLER)
"""Roles that start programs which may not read the secret files of the run, whichever section names them."""
_NEEDS: dict[Role, tuple[Role, ...]] = {
    Role.STEWARD: (),
    Role.TOOLBOX: (),
    Role.ENGINE: (),
    Role.SAMPLER: (Role.STEWARD,),
    Role.TRAINER: (Role.STEWARD,),
}
_STOP_RANKS: dict[Role, int] = {
    Role.SAMPLER: 10,
    Role.TRAINER: 20,
    Role.TOOLBOX: 30,
    Role.ENGINE: 30,
    Role.STEWARD: 40,
}
_TWO_HOURS, _TEN_MINUTES, _TWO_MINUTES = 7200.0, 600.0, 120.0
_ORPHAN_LEASES: dict[Role, float] = {
    Role.STEWARD: _TEN_MINUTES,
    Role.SAMPLER: _TEN_MINUTES,
    Role.TOOLBOX: _TEN_MINUTES + _TWO_MINUTES,
    Role.ENGINE: _TWO_HOURS,
    Role.TRAINER: _TWO_HOURS,
}


def groups_of(config: RunConfig, *, run_dir: str, reading: bool = False) -> tuple[GroupSpec, ...]:
    """Return the specs in the order of display. `reading`: the steward only answers queries."""
    if not config.environments:
        return ()
    plain = config_to_plain(config)
    return tuple(_group(Role(name), config, plain, run_dir, reading) for name in config.data_groups)


def _group(role: Role, config: RunConfig, plain: dict[str, object], run_dir: str, reading: bool) -> GroupSpec:
    needs = tuple(need.value for need in _NEEDS[role] if need.value in config.data_groups)
    gang = role is Role.TRAINER and config.training.parallel.ranks > 1
    return GroupSpec(
        name=role.value,
        role=role,
        command=("{python}", "-m", f"daemons.{role.value}", *(READ_ONLY if reading and role is Role.STEWARD else ())),
        count=config.sizes[role.value],
        env={
            **_inherited(role, config, plain),
            **({log_format.VARIABLE: config.logs} if config.logs else {}),
            SETTINGS_VARIABLE: _digest(role, config, plain),
        },
        cwd=run_dir,
        hosts=hosts_that_run(role.value, config.all_hosts),
        life=Life.JOB if role is Role.TRAINER else Life.SERVICE,
        speaks=True,
        after=(*(("mongo",) if config.has_mongo else ()), *needs),
        resources=Resources(gpus=_gpus(role, config)),
        drain_grace_s=60.0,
        term_grace_s=10.0,
        start_deadline_s=300.0,
        orphan_lease_s=_ORPHAN_LEASES[role],
        gang=gang,
        private=private_addresses(config.all_hosts) if gang else {},
        # All their writes are conditional on an owner or lineage, which a replacement takes over first.
        fenced=True,
        stop_rank=_STOP_RANKS[role],
    )


def _inherited(role: Role, config: RunConfig, plain: dict[str, object]) -> dict[str, str]:
    """The variables that the run file names: in `inherit`, and in the settings that the role reads. The variable of the
    database is not among them: the coordinator reads it and passes the URL to each host in a file."""
    named = {variable_of(text) for text in _texts(readers.resolved(plain, role))} - {""}
    return {name: f"env:{name}" for name in sorted({*config.inherit, *named})}


def _texts(plain: object) -> Iterator[str]:
    if isinstance(plain, str):
        yield plain
    elif isinstance(plain, dict | list):
        for value in plain.values() if isinstance(plain, dict) else plain:
            yield from _texts(value)


def _gpus(role: Role, config: RunConfig) -> int | float:
    engines = config.engines
    of_server = gpus_of(engines.kind, engines.args)
    of_engine = engines.gpus if engines.gpus is not None and (of_server or engines.kind == "embedded") else of_server
    if role is Role.ENGINE:
        return of_engine
    if role is Role.TRAINER:
        # If the engines compute on GPUs, the model is too large to be trained on processors.
        if config.training.gpus is None:
            return 1 if of_engine else 0
        ranks = config.training.parallel.ranks
        return config.training.gpus if ranks == 1 else int(config.training.gpus) // ranks
    return 0


def _digest(role: Role, config: RunConfig, plain: dict[str, object]) -> str:
    read = {
        "read": readers.read_at_start(plain, role),
        # Units get these by other ways than the configuration: the URL of the database in a file, and with tunnels the
        # names of services in variables.
        "mongo": plain.get("mongo"),
        "hosts": plain.get("hosts") if need_tunnels(config.all_hosts) else None,
        "secret files": [str(file) for file in secret_files(config)] if role in STARTS_PROGRAMS else None,
    }
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()[:16]
