"""Defines the whole configuration of a run.

Invariant: every RunConfig is valid as a whole; `contradictions.py` has the rules between its sections.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from agentrl.config import data_plane
from agentrl.config.alerts import Alerts
from agentrl.config.contradictions import ControlPlane, contradictions
from agentrl.config.field_types import Bytes, Flag, Secret, Section, read_by
from agentrl.config.hosts import Host, all_hosts
from agentrl.config.metrics import Metrics
from agentrl.config.outside_access import OutsideAccess
from agentrl.config.paths import RUN_NAME_RULE, is_run_name
from agentrl.config.placement import Placement
from agentrl.config.sidecars import Sidecar, is_endpoint
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.config.tracing import Tracing

# The hub's port is followed by those of the feed and the metrics.
_LAST_PORT = 65_533


def _listen(value: str) -> str:
    address = value.removeprefix("tcp://")
    if value and (address == value or not is_endpoint(address)):
        raise ValueError("must be empty or an address such as tcp://0.0.0.0:7400")
    if value and int(address.rpartition(":")[2]) > _LAST_PORT:
        raise ValueError(f"must have a port of at most {_LAST_PORT}: the two after it are used as well")
    return value


def _run_name(value: str) -> str:
    if not is_run_name(value):
        raise ValueError(f"must be {RUN_NAME_RULE}")
    return value


class Mongo(Section):
    """MongoDB."""

    embedded: Flag = False
    """The run starts its own server, as the unit `mongo-0`."""
    url: Secret = None
    """A reference to the URL of an existing server: `env:NAME` or `file:PATH`."""

    @model_validator(mode="after")
    def _one_server(self) -> Mongo:
        if self.embedded and self.url is not None:
            raise ValueError("embedded contradicts url: there is one server")
        return self


class Coordinator(Section):
    """How the coordinator is reached, and where it keeps its state."""

    listen: Annotated[str, AfterValidator(_listen)] = ""
    """`tcp://host:port` makes the run reachable from other hosts. The next two ports are used as well. Connections over
    tcp are always encrypted and need a key (`agentrl keys new`), so any address is safe. Empty: only processes of the
    same user on this host can connect."""
    state_dir: str = ""
    """Directory for journal, keys and ledgers, on a local disk; relative to the run file. Empty means the usual one,
    `~/.local/state/agentrl/NAME`."""
    recordings_max: Bytes = 2 << 30
    """The size of recordings of the feed, for `agentrl tui --playback`. The oldest are removed first. 0 keeps none."""
    recordings_days: Annotated[float, Field(strict=True, gt=0, le=3650)] = 7.0
    """How long recordings are kept."""


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class RunConfig(data_plane.DataPlane):
    """The configuration of a run."""

    name: Annotated[str, AfterValidator(_run_name), read_by("steward", "sampler", "trainer", "toolbox", "engine")]
    """The name of the run, unique per user: small letters, digits and dashes."""
    extends: str = ""
    """Another run file: its values apply where this file has none. Its path is relative to this file; the paths in it
    are relative to it."""
    dir: Annotated[str, read_by("sampler")] = ""
    """The directory for logs and results, relative to the run file. Hosts may share it. Empty means `runs/NAME`."""
    sidecars: dict[str, Sidecar] = Field(default_factory=dict)
    """Groups of foreign commands, by name."""
    hosts: dict[str, Host] = Field(default_factory=dict)
    """The hosts that groups may name, by name. Empty: a group may name any host."""
    placement: Placement = Placement()
    """How the agents of the hosts are started: `local` (by a person), `ssh` or `slurm`."""
    inherit: tuple[VariableName, ...] = ()
    """Environment variables of `agentrl up` that the units of the data plane get besides the usual ones."""
    mongo: Mongo = Mongo()
    """The database."""
    coordinator: Coordinator = Coordinator()
    """How the coordinator is reached, and where it keeps its state."""
    supervision: SupervisionTimes = SupervisionTimes()
    """The times and counts of supervision."""
    alerts: Alerts = Alerts()
    """Rules, sinks and the ping."""
    logs: Literal["", "text", "json"] = ""
    """The lines of all logs: `text`, or `json`, one object a line. Empty: the value of AGENTRL_LOG_FORMAT, or text."""
    metrics: Metrics = Metrics()
    """How monitoring systems read the numbers of the run."""
    tracing: Annotated[Tracing, read_by("sampler", "trainer", "toolbox", "engine")] = Tracing()
    """Spans for a collector of OpenTelemetry."""
    outside: Annotated[OutsideAccess, read_by("toolbox")] = OutsideAccess()
    """Programs outside of the run that use its tools."""

    @model_validator(mode="after")
    def _whole(self) -> RunConfig:
        control = ControlPlane(
            groups=self.groups,
            sidecars=self.sidecars,
            hosts=self.hosts,
            placement=self.placement,
            alerts=self.alerts,
            listens=bool(self.coordinator.listen),
            has_mongo=self.has_mongo,
        )
        problems = list(contradictions(self, control))
        if problems:
            text = "; ".join(f"{'.'.join(path)} {sentence}" for path, sentence in problems)
            raise PydanticCustomError("between_sections", "{text}", {"text": text, "problems": problems})
        return self

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of all groups of the run."""
        return tuple(self.sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """The initial count of each group."""
        many = {
            "engine": self.engines.count + (self.evaluation.engine != "shared"),
            "sampler": self.rollout.samplers,
            "trainer": self.training.parallel.ranks,
        }
        return {
            **({"mongo": 1} if self.has_mongo else {}),
            **{name: many.get(name, 1) for name in self.data_groups},
            **{name: sidecar.size for name, sidecar in self.sidecars.items()},
        }

    @property
    def all_hosts(self) -> dict[str, Host]:
        """The hosts by name, including each host of a `count`."""
        return all_hosts(self.hosts)

    @property
    def is_job(self) -> bool:
        """True if the run has no groups and is only a job of `agentrl train` on demonstrations."""
        return not self.groups and self.training.loss == "sft"

    @property
    def has_mongo(self) -> bool:
        """Whether the run starts its own MongoDB server."""
        return self.mongo.embedded or (bool(self.environments) and self.mongo.url is None)

    @property
    def data_groups(self) -> tuple[str, ...]:
        """Names of the groups of the data plane."""
        if not self.environments:
            return ()
        return ("steward", *(("toolbox",) if self.tools else ()), "engine", "sampler", "trainer")
