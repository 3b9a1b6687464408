"""Makes the group specs of the data plane: steward, toolbox, engine, sampler, trainer.

Invariants:
- The functions are pure.
- A group is replaced if and only if a section that its processes read at their start changed.
- A group is ready before the groups that need it and stopped after them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from agentrl.config.hosts import hosts_that_run, need_tunnels, private_addresses
from agentrl.config.other_models import LIVE_SECTIONS
from agentrl.config.run import RunConfig
from agentrl.config.secrets import variable_of
from agentrl.config.serialization import config_to_plain
from agentrl.config.server_arguments import gpus_of
from agentrl.protocol.specs import GroupSpec, Life, Resources, Role
from agentrl.tracing import log_format

SETTINGS_VARIABLE = "AGENTRL_SETTINGS"
"""A digest of the sections that a role reads. A changed digest replaces its units."""

_OF_GROUPS = tuple(
    f"training.{key}"
    for key in (
        "advantage",
        "cap_malformed",
        "divide_by_std",
        "limits",
        "min_range",
        "min_valid",
        "overlong",
        "sign_clip",
        "turn_discount",
        "turn_spread",
    )
)
"""The settings that decide when tasks close, and with which advantages. Samplers close most tasks."""

READ_ONLY = ("--read-only",)

_READS: dict[Role, tuple[str, ...]] = {
    Role.STEWARD: ("mongo", "environments", "curriculum", "sampling", "rollout", "training", "evaluation", "retention"),
    Role.TOOLBOX: ("mongo", "tools", "outside"),
    Role.ENGINE: ("mongo", "model", "engines"),
    Role.SAMPLER: ("mongo", "model", "environments", "rollout", "sampling", *_OF_GROUPS),
    Role.TRAINER: ("mongo", "model", "environments", "sampling", "training", "evaluation", "retention"),
}
_READS_WITHOUT_VARIABLES: dict[Role, tuple[str, ...]] = {
    Role.STEWARD: ("model.images", "tools", "reward_watch"),
    Role.TOOLBOX: ("rollout.episode_s",),
    Role.ENGINE: ("sampling.context", "evaluation.engine"),
    Role.SAMPLER: ("tools", "curriculum", "training.random"),
    Role.TRAINER: ("engines.kind", "engines.takes_turns", "rollout.episode_s", "rollout.max_in_flight"),
}
"""More that a role reads. The variables that these sections name are secrets of other roles."""
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
            SETTINGS_VARIABLE: _digest(plain, (*_reads(role, config), *_READS_WITHOUT_VARIABLES[role])),
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
    """The variables that the run file names: in `inherit`, and in the sections that the role reads. The variable of the
    database is not among them: the coordinator reads it and passes the URL to each host in a file."""
    sections = [section for section in _reads(role, config) if section != "mongo"]
    if role is Role.SAMPLER:
        # These sections are not in the digest, because samplers read them again. But a variable must exist when a
        # process starts.
        sections += LIVE_SECTIONS
    named = {variable_of(text) for section in sections for text in _texts(_at(plain, section))} - {""}
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


def _reads(role: Role, config: RunConfig) -> tuple[str, ...]:
    # A unit learns the names of services only at its start, and they differ with tunnels.
    traced = ("tracing",) if config.tracing.endpoint else ()
    return (*_READS[role], *(("hosts",) if need_tunnels(config.all_hosts) else ()), *traced)


def _digest(plain: dict[str, object], sections: tuple[str, ...]) -> str:
    read = {name: _at(plain, name) for name in sections}
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _at(plain: object, name: str) -> object:
    """A section, or one key of it (`section.key`)."""
    for key in name.split("."):
        plain = plain.get(key) if isinstance(plain, dict) else None
    return plain
