"""Defines the whole configuration of a run, and checks the rules between its sections.

Invariants:
- Every RunConfig is valid as a whole.
- Every group that a section names exists.
- No groups wait for each other in a circle.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from agentrl.config import data_plane, lora, parallel, placement, policy_rules
from agentrl.config.agentcpm_file import JUDGES
from agentrl.config.alerts import BUILT_IN_RULES, Alerts
from agentrl.config.field_types import Bytes, Flag, Secret, Section, read_by
from agentrl.config.hosts import Host, all_hosts, known_words, problem_of
from agentrl.config.metrics import Metrics
from agentrl.config.outside_access import OutsideAccess
from agentrl.config.paths import RUN_NAME_RULE, is_run_name
from agentrl.config.placement import Placement
from agentrl.config.sidecars import Sidecar, is_endpoint
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.config.tracing import Tracing

GROUP_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
RESERVED_GROUPS = frozenset(
    ["coordinator", "engine", "gateway", "host", "mongo", "run", "sampler", "sidecar", "steward", "toolbox", "trainer"]
)
"""Names of roles, and `run`, which means the whole run in commands."""

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
        problems = list(_problems_between_sections(self))
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


def nearest(name: str, known: tuple[str, ...], below: str = "") -> str:
    """The end of a message about a wrong name: the nearest known name, or all known names."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {below}{close[0]}?"
    return f"known are: {', '.join(known)}." if known else "there are none."


def _problems_between_sections(config: RunConfig) -> Iterator[data_plane.Problem]:
    for name in config.sidecars:
        yield from _problems_of_name(name)
    yield from _problems_of_after(config)
    yield from _problems_of_hosts(config)
    yield from _problems_of_alerts(config)
    yield from data_plane.problems_of(config)
    yield from _problems_of_registered_names(config)
    yield from policy_rules.problems_of(config)
    yield from lora.problems_of(config.training)
    yield from lora.problems_of_publication(config.training, config.engines)
    yield from parallel.problems_of(
        config.training.parallel,
        groups=config.training.groups if config.environments else 0,
        gpus=config.training.gpus or 0,
        compiled=config.training.compile,
    )
    if config.training.gather == "bfloat16" != config.training.precision:
        yield ("training", "gather"), "is bfloat16, which needs precision: bfloat16"


def _problems_of_alerts(config: RunConfig) -> Iterator[data_plane.Problem]:
    disabled = config.alerts.disable
    for name in disabled:
        if name not in BUILT_IN_RULES:
            yield ("alerts", "disable"), f"names no built-in rule, {name!r}; {nearest(name, BUILT_IN_RULES)}"
    for index, rule in enumerate(config.alerts.rules):
        path = ("alerts", "rules", str(index))
        group = re.sub(r"-\d+$", "", rule.of)
        if rule.of not in config.groups and group not in config.groups:
            yield (*path, "of"), f"names no group or unit of the run, {rule.of!r}; {nearest(rule.of, config.groups)}"
        if rule.name in BUILT_IN_RULES and rule.name not in disabled:
            yield (*path, "name"), f"is that of a built-in rule, {rule.name!r}; take another, or disable that one"


def _problems_of_registered_names(config: RunConfig) -> Iterator[data_plane.Problem]:
    """Returns messages about unknown registered names. If the run has code of its own, only that code knows all
    names.
    """
    if config.rollout.code:
        return
    for name, environment in config.environments.items():
        for key, named, shipped in (
            ("agent", environment.agent, data_plane.SHIPPED_AGENTS),
            ("scorer", environment.scorer, (*data_plane.SHIPPED_SCORERS, *config.judges)),
        ):
            if named in JUDGES and named not in shipped:
                yield ("environments", name, key), f"is {named}, which asks the models of rollout.agent_config: name it"
            elif named not in shipped and not (named == name and environment.code):
                yield (
                    ("environments", name, key),
                    f"names {named!r}, which is not built in, and rollout.code names no file that registers it; "
                    f"{nearest(named, shipped)}",
                )


def _problems_of_name(name: str) -> Iterator[data_plane.Problem]:
    path = ("sidecars", name)
    if not GROUP_NAME.fullmatch(name):
        yield path, "is no name of a group: it must begin with a small letter, and have only a-z, 0-9 and dashes (40)"
    elif name in RESERVED_GROUPS:
        yield path, f"is no name of a group: {name} is a word of agentrl itself; take another, such as my-{name}"
    elif re.search(r"-\d+$", name):
        yield path, "is no name of a group: a dash and a number at the end make the name of a unit"


def _problems_of_hosts(config: RunConfig) -> Iterator[data_plane.Problem]:
    for name in config.hosts:
        key, problem = problem_of(name, config.hosts)
        if problem:
            yield ("hosts", name, *((key,) if key else ())), problem
        if config.hosts[name].runs and not config.coordinator.listen:
            yield ("hosts", name, "runs"), "needs coordinator.listen, the address at which hosts join the run"
    yield from placement.problems_of(config.placement, config.hosts, listens=bool(config.coordinator.listen))
    known = known_words(config.all_hosts)
    for name, sidecar in config.sidecars.items():
        for word in sidecar.hosts if known else ():
            if word not in known:
                yield ("sidecars", name, "hosts"), f"names the unknown host or label {word!r}; {nearest(word, known)}"
        if sidecar.near and sidecar.near not in config.groups:
            problem = f"names the unknown group {sidecar.near!r}; {nearest(sidecar.near, config.groups)}"
            yield ("sidecars", name, "near"), problem


def _problems_of_after(config: RunConfig) -> Iterator[data_plane.Problem]:
    known = config.groups
    edges: dict[str, tuple[str, ...]] = {}
    for name, sidecar in config.sidecars.items():
        for other in sidecar.after:
            if other == "mongo" and not config.has_mongo:
                yield ("sidecars", name, "after"), "names mongo, but mongo.embedded is not true"
            elif other not in known:
                yield ("sidecars", name, "after"), f"names the unknown group {other!r}; {nearest(other, known)}"
        edges[name] = tuple(other for other in sidecar.after if other in config.sidecars)
    circle = _circle(edges)
    if circle:
        yield ("sidecars", circle[0], "after"), f"makes a circle: {' waits for '.join(circle)}"


def _circle(edges: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """One circle, its first name repeated at the end; empty if there is none."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        # A stack of iterators instead of recursion: a chain may be as long as the file.
        stack = [iter((start,))]
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                return (*path[path.index(name) :], name)
            elif name not in done:
                path.append(name)
                stack.append(iter(edges[name]))
    return ()
