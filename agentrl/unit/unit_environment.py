"""Reads the identity of a unit from the environment of its process: its name, and where its coordinator listens.

A process with AGENTRL_COORDINATOR is supervised and has a complete identity. A process without it runs alone, with the
same main loop, for development.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError
from agentrl.protocol.specs import incarnation_name, split_incarnation, split_unit


class UnitEnvironment(msgspec.Struct, frozen=True):
    """The identity of one incarnation."""

    unit: str
    group: str
    slot: int
    incarnation: int
    run_dir: Path
    state_dir: Path | None = None
    run: str = ""
    coordinator: str = ""
    token: str = ""
    key: Path | None = None
    heartbeat_s: float = 2.0
    orphan_lease_s: float = 600.0

    @property
    def supervised(self) -> bool:
        return bool(self.coordinator)

    @property
    def name(self) -> str:
        """`web-0.7`"""
        return incarnation_name(self.unit, self.incarnation)


def read_environment(variables: Mapping[str, str], *, program: str = "unit") -> UnitEnvironment:
    """Read the identity from the variables. `program` names a process that has no coordinator."""
    run_dir = Path(variables.get("AGENTRL_RUN_DIR") or Path.cwd())
    state_dir = _path(variables, "AGENTRL_STATE_DIR")
    if not variables.get("AGENTRL_COORDINATOR"):
        return UnitEnvironment(
            unit=f"{program}-0", group=program, slot=0, incarnation=0, run_dir=run_dir, state_dir=state_dir
        )
    try:
        unit, incarnation = split_incarnation(variables.get("AGENTRL_INCARNATION", ""))
        group, slot = split_unit(unit)
    except ValueError as wrong:
        raise ConfigError(
            f"AGENTRL_INCARNATION: {wrong}.",
            hint="Start units with `agentrl up`, or unset AGENTRL_COORDINATOR to run this program alone.",
        ) from wrong
    return UnitEnvironment(
        unit=unit,
        group=variables.get("AGENTRL_GROUP", group),
        slot=slot,
        incarnation=incarnation,
        run_dir=run_dir,
        state_dir=state_dir,
        run=variables.get("AGENTRL_RUN", ""),
        coordinator=variables["AGENTRL_COORDINATOR"],
        token=variables.get("AGENTRL_TOKEN", ""),
        key=_path(variables, "AGENTRL_KEY"),
        heartbeat_s=_seconds(variables, "AGENTRL_HEARTBEAT_S", 2.0),
        orphan_lease_s=_seconds(variables, "AGENTRL_ORPHAN_LEASE_S", 600.0),
    )


def _path(variables: Mapping[str, str], name: str) -> Path | None:
    return Path(variables[name]) if variables.get(name) else None


def _seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    written = variables.get(name)
    if not written:
        return default
    try:
        value = float(written)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ConfigError(f"{name} is {written!r}, must be a number of seconds above 0.")
    return value
