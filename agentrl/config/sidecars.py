"""Defines sidecars: groups of foreign commands in the configuration.

Invariants:
- A sidecar is complete: its units can be started without any other setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from agentrl.config.field_types import (
    Bytes,
    Command,
    Count,
    Env,
    Flag,
    Gpus,
    Number,
    Seconds,
    Section,
    Words,
    problems_in_one_of,
)
from agentrl.config.placeholders import misspelt
from agentrl.protocol.specs import Life

SET_BY_GANGS = frozenset(
    [
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK"),
    ]
)
"""Variables by which the ranks of a gang find each other, named as torchrun does."""
_Grace = Annotated[float, Field(strict=True, ge=0, le=86_400)]


class Probe(Section):
    """A check of a process from outside: exactly one of exec, http and tcp."""

    exec: Command = ()
    """A command; exit code 0 is success."""
    http: str = ""
    """A URL that begins with `http://`; a status below 400 is success."""
    tcp: str = ""
    """`host:port`; a connection is success."""
    interval_s: Seconds = 2.0
    """How often it runs."""
    timeout_s: Seconds = 5.0
    """How long an answer may take before the check fails."""
    failures: Annotated[int, Field(strict=True, ge=1, le=1_000)] = 3
    """How many failures in a row make the probe fail."""

    @model_validator(mode="after")
    def _one_question(self) -> Probe:
        if problem := problems_in_one_of(self, ("exec", "http", "tcp")):
            raise ValueError(problem)
        if self.http.startswith("https://"):
            raise ValueError("http is asked in plain text; for https name a command, such as exec: curl -fsS URL")
        if self.http and not self.http.startswith("http://"):
            raise ValueError(f"http must be a URL such as http://127.0.0.1:8000/health, not {self.http!r}")
        if self.tcp and not is_endpoint(self.tcp):
            raise ValueError(f"tcp must be host:port, such as 127.0.0.1:8000, not {self.tcp!r}")
        return self


class Resources(Section):
    """What one unit reserves on its host. Zero reserves nothing."""

    cpus: Annotated[Number, Field(ge=0, le=10_000)] = 0.0
    """Processor cores."""
    gpus: Gpus = 0
    """GPUs that only this unit gets, or a share of one such as 0.5."""
    memory_max: Bytes = 0
    """A hard limit, in bytes or as `512MiB`. A unit that exceeds it is killed; such deaths are counted separately."""


def _spread(value: object) -> object:
    """YAML reads `yes` as true."""
    return "yes" if value is True else value


class Sidecar(Section):
    """A group of equal units that run one command. `{slot}`, `{unit}`, `{run_dir}`, `{state_dir}` and `{python}` are
    replaced in `command`, `env` and probes."""

    command: Command
    """The program and its arguments, as a list or as one string; no shell is involved."""
    count: Count = 1
    """How many units the group has."""
    env: Env = Field(default_factory=dict)
    """Environment of the units, in addition to that of the host agent. Secrets are references: `env:NAME` or
    `file:PATH`."""
    cwd: str = ""
    """Working directory, relative to the run file; empty means the directory of the run file."""
    life: Life = Life.SERVICE
    """`service`: it runs until it is stopped, and exit 0 is a death. `job`: it is done with exit 0."""
    speaks: Flag = False
    """True if the program uses the unit runtime, which reports when it is ready."""
    ready: Probe | None = None
    """The check of readiness. Without it, a unit that does not speak is ready as soon as it is started."""
    live: Probe | None = None
    """A ready unit that fails this is replaced."""
    metrics: Probe | None = None
    """The source of metrics: `name value` lines by exec or http (the Prometheus text format)."""
    after: Words = ()
    """Groups that must be ready before a unit of this group starts. They are stopped after it."""
    hosts: Words = ()
    """Hosts on which it may run, by name or by label; empty means any."""
    spread: Annotated[Literal["", "yes", "pack"], BeforeValidator(_spread)] = ""
    """`yes`: its units are placed on as many hosts as possible. `pack`: on as few as possible. Empty: on the hosts with
    the fewest units."""
    near: str = ""
    """A group on whose hosts its units are placed first, if there is room."""
    resources: Resources = Resources()
    """What a unit reserves on its host."""
    drain_grace_s: _Grace = 5.0
    """How long a unit that speaks may take to finish its work."""
    term_grace_s: _Grace = 5.0
    """How long a unit has after SIGTERM before it is killed."""
    start_deadline_s: Seconds = 60.0
    """How long a start may take before the unit is stopped and tried again."""
    orphan_lease_s: Seconds = 600.0
    """How long a unit that speaks keeps working without a coordinator before it ends."""
    ranks: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    """Makes the group a gang of this many ranks, in place of `count`: either all of them run or none, they start and
    end together, and they find each other as under torchrun."""
    ranks_per_host: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    """The most ranks of a gang on one host; 0: as many as there is room for."""
    fenced: Flag = False
    """True if a lost unit can do no harm, so that it may be replaced before its death is confirmed."""
    permission: Literal["", "viewer", "operator", "admin"] = "viewer"
    """The permission of its processes to use `agentrl` on the run; empty means none. Processes of all other units have
    none."""
    log_max: Annotated[Bytes, Field(ge=4096)] = 32 << 20
    """Size at which a log is cut, in bytes or as `32MiB`."""

    @model_validator(mode="after")
    def _sensible(self) -> Sidecar:
        if not self.command or not self.command[0]:
            raise ValueError("command is empty")
        for key, texts in self.with_placeholders():
            if mistake := next(filter(None, map(misspelt, texts)), ""):
                raise ValueError(f"{key} names a placeholder that does not exist: {mistake}")
        if self.metrics is not None and self.metrics.tcp:
            raise ValueError("metrics needs exec or http: a tcp connection shows no numbers")
        if problem := self._problem_of_gang():
            raise ValueError(problem)
        if self.speaks and self.ready is not None:
            raise ValueError("ready contradicts speaks: a unit that speaks says itself when it is ready")
        for name in self.env:
            if not name or "=" in name or "\0" in name:
                raise ValueError(f"env has {name!r}, which is no name of a variable")
            if name.startswith("AGENTRL_"):
                raise ValueError(f"env may not set {name}: names that begin with AGENTRL_ are the run's own")
        return self

    def _problem_of_gang(self) -> str:
        if not self.ranks:
            return "ranks_per_host needs ranks, which makes the group a gang" if self.ranks_per_host else ""
        if self.count != 1:
            return "count contradicts ranks: a gang has one unit for each rank"
        if self.spread or self.near:
            return "spread and near are not for a gang, which is on as few hosts as possible"
        if self.resources.gpus != int(self.resources.gpus):
            return "resources.gpus must be a whole number in a gang: a rank has devices of its own"
        taken = next((name for name in self.env if name in SET_BY_GANGS), "")
        return f"env may not set {taken}: each rank gets its own" if taken else ""

    @property
    def size(self) -> int:
        """The number of its units in the run file."""
        return self.ranks or self.count

    def with_placeholders(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every text in which placeholders are replaced, by its key."""
        yield "command", self.command
        for name, value in self.env.items():
            yield f"env.{name}", (value,)
        for key in ("ready", "live", "metrics"):
            probe: Probe | None = getattr(self, key)
            if probe is not None:
                yield key, (*probe.exec, probe.http, probe.tcp)


def is_endpoint(text: str) -> bool:
    """True for `host:port`; the port may be a placeholder such as `80{slot}`."""
    host, _, port = text.rpartition(":")
    if "{slot}" in port:
        port = port.replace("{slot}", "0")
    return bool(host) and port.isdecimal() and 0 < int(port) <= 65_535
