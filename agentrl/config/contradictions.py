"""The contradictions of a run file: settings that are right by themselves and wrong beside each other.

Invariants:
- Every contradiction of a file is in the one message that refuses it, with the key to change.
- A name that one section uses and another defines exists.
- No groups wait for each other in a circle.
- A batch can be filled: the largest group fits into what may be in flight.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from agentrl.adapters.sources import source_of
from agentrl.config import policy_rules, server_arguments
from agentrl.config.agentcpm_file import JUDGES
from agentrl.config.alerts import BUILT_IN_RULES, Alerts
from agentrl.config.curriculum import CurriculumStage
from agentrl.config.data_plane import (
    SHIPPED_AGENTS,
    SHIPPED_SCORERS,
    DataPlane,
    Environment,
    Problem,
    problem_of_schema,
)
from agentrl.config.engines import Engines
from agentrl.config.hosts import MAY_RUN, Host, all_hosts, known_words
from agentrl.config.parallel import Parallel
from agentrl.config.placement import Placement, Slurm, is_meant
from agentrl.config.sidecars import Sidecar
from agentrl.config.this_host import HOST_NAME
from agentrl.config.training import Training

GROUP_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
RESERVED_GROUPS = frozenset(
    ["coordinator", "engine", "gateway", "host", "mongo", "run", "sampler", "sidecar", "steward", "toolbox", "trainer"]
)
"""Names of roles, and `run`, which means the whole run in commands."""


class ControlPlane(NamedTuple):
    """The sections of the control plane that can contradict each other or the data plane."""

    groups: tuple[str, ...]
    """All groups of the run."""
    sidecars: Mapping[str, Sidecar]
    hosts: Mapping[str, Host]
    placement: Placement
    alerts: Alerts
    listens: bool
    """Whether other hosts can join."""
    has_mongo: bool


def contradictions(data: DataPlane, control: ControlPlane) -> Iterator[Problem]:
    """The key and the message of each setting that contradicts another one."""
    for name in control.sidecars:
        yield from _of_sidecar_name(name)
    yield from _of_order(control)
    yield from _of_hosts(control)
    yield from _of_alerts(control)
    yield from _of_data_plane(data)
    yield from _of_registered_names(data)
    yield from policy_rules.problems_of(data)
    yield from _of_lora(data.training)
    yield from _of_publication(data.training, data.engines)
    yield from of_parallel(
        data.training.parallel,
        groups=data.training.groups if data.environments else 0,
        gpus=data.training.gpus or 0,
        compiled=data.training.compile,
    )
    if data.training.gather == "bfloat16" != data.training.precision:
        yield ("training", "gather"), "is bfloat16, which needs precision: bfloat16"


# ---- names ----


def nearest(name: str, known: tuple[str, ...], below: str = "") -> str:
    """The end of a message about a wrong name: the nearest known name, or all known names."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {below}{close[0]}?"
    return f"known are: {', '.join(known)}." if known else "there are none."


def _of_sidecar_name(name: str) -> Iterator[Problem]:
    path = ("sidecars", name)
    if not GROUP_NAME.fullmatch(name):
        yield path, "is no name of a group: it must begin with a small letter, and have only a-z, 0-9 and dashes (40)"
    elif name in RESERVED_GROUPS:
        yield path, f"is no name of a group: {name} is a word of agentrl itself; take another, such as my-{name}"
    elif re.search(r"-\d+$", name):
        yield path, "is no name of a group: a dash and a number at the end make the name of a unit"


def _of_registered_names(data: DataPlane) -> Iterator[Problem]:
    """Returns messages about unknown registered names. If the run has code of its own, only that code knows all
    names.
    """
    if data.rollout.code:
        return
    for name, environment in data.environments.items():
        for key, named, shipped in (
            ("agent", environment.agent, SHIPPED_AGENTS),
            ("scorer", environment.scorer, (*SHIPPED_SCORERS, *data.judges)),
        ):
            if named in JUDGES and named not in shipped:
                yield ("environments", name, key), f"is {named}, which asks the models of rollout.agent_config: name it"
            elif named not in shipped and not (named == name and environment.code):
                yield (
                    ("environments", name, key),
                    f"names {named!r}, which is not built in, and rollout.code names no file that registers it; "
                    f"{nearest(named, shipped)}",
                )


def _of_alerts(control: ControlPlane) -> Iterator[Problem]:
    disabled = control.alerts.disable
    for name in disabled:
        if name not in BUILT_IN_RULES:
            yield ("alerts", "disable"), f"names no built-in rule, {name!r}; {nearest(name, BUILT_IN_RULES)}"
    for index, rule in enumerate(control.alerts.rules):
        path = ("alerts", "rules", str(index))
        group = re.sub(r"-\d+$", "", rule.of)
        if rule.of not in control.groups and group not in control.groups:
            yield (*path, "of"), f"names no group or unit of the run, {rule.of!r}; {nearest(rule.of, control.groups)}"
        if rule.name in BUILT_IN_RULES and rule.name not in disabled:
            yield (*path, "name"), f"is that of a built-in rule, {rule.name!r}; take another, or disable that one"


# ---- hosts and sidecars ----


def _of_order(control: ControlPlane) -> Iterator[Problem]:
    known = control.groups
    edges: dict[str, tuple[str, ...]] = {}
    for name, sidecar in control.sidecars.items():
        for other in sidecar.after:
            if other == "mongo" and not control.has_mongo:
                yield ("sidecars", name, "after"), "names mongo, but mongo.embedded is not true"
            elif other not in known:
                yield ("sidecars", name, "after"), f"names the unknown group {other!r}; {nearest(other, known)}"
        edges[name] = tuple(other for other in sidecar.after if other in control.sidecars)
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


def _of_hosts(control: ControlPlane) -> Iterator[Problem]:
    for name in control.hosts:
        for key, problem in islice(_of_host(name, control.hosts), 1):
            yield ("hosts", name, *((key,) if key else ())), problem
        if control.hosts[name].runs and not control.listens:
            yield ("hosts", name, "runs"), "needs coordinator.listen, the address at which hosts join the run"
    yield from _of_placement(control)
    known = known_words(all_hosts(control.hosts))
    for name, sidecar in control.sidecars.items():
        for word in sidecar.hosts if known else ():
            if word not in known:
                yield ("sidecars", name, "hosts"), f"names the unknown host or label {word!r}; {nearest(word, known)}"
        if sidecar.near and sidecar.near not in control.groups:
            problem = f"names the unknown group {sidecar.near!r}; {nearest(sidecar.near, control.groups)}"
            yield ("sidecars", name, "near"), problem


def _of_host(name: str, hosts: Mapping[str, Host]) -> Iterator[tuple[str, str]]:
    """The wrong keys of a host with their messages. Only the first is shown: others may follow from it."""
    if not HOST_NAME.fullmatch(name):
        yield "", "is no name of a host: use at most 64 letters, digits, dots and dashes"
    for label in hosts[name].labels:
        if not HOST_NAME.fullmatch(label):
            yield "labels", f"has {label!r}, which is no label: use at most 64 letters, digits, dots and dashes"
        if label in hosts:
            yield "labels", f"has {label!r}, which is the name of a host; take another word"
    for number in range(hosts[name].count):
        if (other := f"{name}-{number}") in hosts:
            yield "count", f"makes a host {other}, and there is one of that name"
    for key in ("node", "private"):
        if hosts[name].count and getattr(hosts[name], key):
            yield key, "names one machine, but count makes several hosts"
    if (private := hosts[name].private) and not _is_address(private):
        yield "private", f"must be an address such as 10.0.0.2, not {private!r}"
    for key in ("dir", "disk"):
        if (path := getattr(hosts[name], key)) and not path.startswith("/"):
            yield key, f"is {path!r}; write the whole path, because it is one of that host"
    for group in hosts[name].runs:
        if group not in MAY_RUN:
            yield "runs", f"names {group!r}; other hosts than the coordinator's may run {', '.join(MAY_RUN)}"


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast or address.is_loopback)


def _of_placement(control: ControlPlane) -> Iterator[Problem]:
    placement, hosts = control.placement, control.hosts
    if placement.kind == "local":
        return
    if not hosts:
        yield ("placement", placement.kind), "has no hosts to start: name them in hosts"
    elif not control.listens:
        yield ("placement", placement.kind), "needs coordinator.listen, the address at which hosts join the run"
    if placement.slurm is not None and placement.slurm.components:
        yield from _of_components(placement.slurm, hosts)
    if placement.ray is not None:
        words = {word for bundle in placement.ray.bundles for word in bundle.hosts}
        for word in sorted(words - {*hosts, *all_hosts(hosts)}):
            yield ("placement", "ray", "bundles"), f"names the unknown host {word!r}"


def _of_components(slurm: Slurm, hosts: Mapping[str, Host]) -> Iterator[Problem]:
    known = all_hosts(hosts)
    in_components: list[str] = []
    for index, component in enumerate(slurm.components):
        for word in component.hosts:
            named = [name for name in known if is_meant(name, word)]
            if not named:
                yield ("placement", "slurm", "components", str(index), "hosts"), f"names the unknown host {word!r}"
            in_components += named
    for name in known:
        if in_components.count(name) != 1:
            yield (
                ("placement", "slurm", "components"),
                f"must have the host {name} in exactly one component, not in {in_components.count(name)}",
            )


# ---- the data plane ----


def _of_context(data: DataPlane, name: str, environment: Environment) -> Iterator[Problem]:
    context, at = environment.context, ("environments", name, "context")
    if context.strategy != "stop" and environment.history == "template":
        yield (*at, "strategy"), "needs history: sampled, because the template rewrites the whole conversation"
    source = source_of(environment.code)
    if context.strategy == "discard_all_with_summary" and source is not None and source.facts.program:
        yield (*at, "strategy"), "adds a turn that the package would read as an action; choose another strategy"
    if context.model and context.model not in data.models:
        known = ", ".join(data.models) or "none"
        yield (*at, "model"), f"names the unknown model {context.model!r}; known are: {known}"
    if context.budget >= data.sampling.context:
        yield (*at, "budget"), f"must be below sampling.context ({data.sampling.context})"


def _of_environment(data: DataPlane, name: str, environment: Environment) -> Iterator[Problem]:
    for server in environment.tools:
        if server not in data.tools:
            known = ", ".join(data.tools) or "none"
            yield ("environments", name, "tools"), f"names the unknown tool server {server!r}; known are: {known}"
    yield from _of_context(data, name, environment)
    if environment.is_apart and environment.code in data.rollout.code:
        sentence = "has the run's Python and no sandbox elsewhere in this run, so samplers import its file: write the "
        yield ("environments", name, "code"), sentence + "same for all its environments, and in the run file itself"
    if problem := problem_of_schema(environment.answer_schema):
        yield ("environments", name, "answer_schema"), problem


def _of_data_plane(data: DataPlane) -> Iterator[Problem]:
    if not data.environments:
        return
    if data.training.loss == "sft":
        yield ("training", "loss"), "is sft: that is a job of `agentrl train`, whose run file has no environments"
    if data.model is None:
        yield ("model",), "is missing: a run with environments trains a model; write `path` or `build: tiny`"
    for name, environment in data.environments.items():
        yield from _of_environment(data, name, environment)
    yield from _of_engines(data.engines, data.training)
    yield from _of_curriculum(data.curriculum, data.environments)
    yield from _of_other_models(data)
    for name in set(data.judges) & set(SHIPPED_SCORERS):
        yield ("judges", name), "has the name of a scorer that comes along; take another"
    n = data.sampling.n
    if data.training.reference_weight and data.training.reference == "none":
        yield (
            ("training", "reference_weight"),
            "weighs the distance to a reference, and there is none: set reference: initial",
        )
    in_reward = data.training.reference_in == "reward"
    compared = data.training.advantage == "grpo" and not data.training.divide_by_std
    if in_reward and not compared and data.training.advantage != "gae":
        yield (
            ("training", "reference_in"),
            "is reward: the distance is compared with the mean of the group; "
            "set advantage: grpo, divide_by_std: false, or advantage: gae",
        )
    if (recorded := data.training.warmup.recorded).filter and not recorded.run:
        yield (
            ("training", "warmup", "recorded"),
            "names no run: the warm-up comes before the first record of this one",
        )
    if data.training.optimizer_steps > data.training.groups:
        yield ("training", "optimizer_steps"), f"is larger than training.groups ({data.training.groups})"
    if data.rollout.max_in_flight < n:
        yield ("rollout", "max_in_flight"), f"is smaller than sampling.n ({n}): no group would ever be admitted"
    if data.training.min_valid > n:
        yield ("training", "min_valid"), f"is larger than sampling.n ({n}): no group would ever close"


def _of_curriculum(stages: Sequence[CurriculumStage], environments: Collection[str]) -> Iterator[Problem]:
    known = ", ".join(environments)
    for number, stage in enumerate(stages):
        at, last = ("curriculum", str(number)), number == len(stages) - 1
        for name in stage.mix:
            if name not in environments:
                yield (*at, "mix"), f"names the unknown environment {name!r}; known are: {known}"
        for name in stage.scorers:
            if name not in environments:
                yield (*at, "scorers"), f"names the unknown environment {name!r}; known are: {known}"
        if stage.until is None and not last:
            yield at, "has no `until`, so the stages after it would never begin"
        if stage.until is not None and last:
            yield (*at, "until"), "is in the last stage, after which nothing comes"
        if stage.until is not None and not stage.mix.get(stage.until.environment):
            yield (*at, "until", "environment"), "must be one that this stage mixes in"


def _of_other_models(data: DataPlane) -> Iterator[Problem]:
    models, summaries = data.models, data.summaries
    known = ", ".join(models) or "none"
    for name, services in models.items():
        if not services:
            yield ("models", name), "has no service; write a list of one or more, in the order in which they are asked"
    for name, judge in data.judges.items():
        if judge.model not in models:
            yield ("judges", name, "model"), f"names the unknown model {judge.model!r}; known are: {known}"
        elif judge.votes > 1 and all(service.temperature == 0 for service in models[judge.model]):
            yield (
                ("judges", name, "votes"),
                f"is {judge.votes}, but {judge.model} answers at temperature 0, so all votes would be the same",
            )
    if summaries.model and summaries.model not in models:
        yield ("summaries", "model"), f"names the unknown model {summaries.model!r}; known are: {known}"


# ---- engines and the trainer ----


def _of_engines(engines: Engines, training: Training) -> Iterator[Problem]:
    if problem := server_arguments.problem_of(engines.kind, engines.args):
        yield ("engines", "args"), problem
    elif engines.weights in ("group", "ipc") and server_arguments.ranks_of(engines.args) is None:
        yield (
            ("engines", "weights"),
            f"is {engines.weights}, which servers with --dp-size or --pp-size cannot: use files",
        )
    elif engines.kind in server_arguments.ALLOWED and (given := engines.gpus) is not None:
        wanted = server_arguments.gpus_of(engines.kind, engines.args)
        if given != wanted and not (wanted == 1 and 0 < given < 1):
            yield ("engines", "gpus"), f"is {given:g}, but the server computes on {wanted}: change its --tp-size"
    elif engines.kind == "embedded" and (engines.gpus or 0) > 1:
        yield ("engines", "gpus"), f"is {engines.gpus:g}: an embedded engine computes on one GPU, or on a share of one"
    saver = {"sglang": "--enable-memory-saver", "vllm": "--enable-sleep-mode"}.get(engines.kind, "")
    if engines.takes_turns and engines.kind == "openai":
        yield ("engines", "takes_turns"), "is for engines of this run; those of the kind openai are elsewhere"
    elif engines.takes_turns and saver and saver not in engines.args:
        yield ("engines", "takes_turns"), f"needs args: {saver}, with which a server can release its memory"
    elif engines.takes_turns and training.parallel.ranks > 1:
        yield ("engines", "takes_turns"), "is for a trainer of one process; training.parallel has several"
    if engines.kind != "openai":
        if engines.url or engines.token or engines.model:
            yield ("engines",), "has url, token or model, which are for kind: openai"
    elif not engines.url:
        yield ("engines", "url"), "is missing: kind: openai needs the address of a server, such as https://HOST/v1"
    elif not training.frozen:
        yield (
            ("engines", "kind"),
            "is openai: its answers have neither token ids nor log-probs, so nothing can be trained on them; "
            "set training.frozen: true to evaluate only",
        )


def _refuses_adapters(engines: Engines) -> str:
    """Why engines of this kind cannot load adapters separately from their base; empty if they can."""
    if engines.kind == "sglang":
        return (
            ""
            if server_arguments.ranks_of(engines.args)
            else "SGLang servers with --dp-size or --pp-size load whole weights only"
        )
    return "" if engines.kind == "embedded" else f"engines of the kind {engines.kind} load whole weights only"


def _of_publication(training: Training, engines: Engines) -> Iterator[Problem]:
    if training.publication.adapters == "apart":
        path = ("training", "publication", "adapters")
        if not training.lora.rank:
            yield path, "is apart, and no adapters are trained: write training.lora, such as lora: {rank: 16}"
        elif why := _refuses_adapters(engines):
            yield path, f"is apart, but {why}: use merged, or auto"


def _of_lora(training: Training) -> Iterator[Problem]:
    lora = training.lora
    path = ("training", "lora")
    if not lora.rank:
        if lora.targets or lora.alpha:
            yield path, "has no rank: write one, such as rank: 16"
        return
    if training.advantage == "gae":
        yield (
            path,
            "cannot be combined with training.advantage: gae, because all weights of its critic would be trained",
        )
    if training.reference != "none" and training.warmup.steps:
        yield (
            path,
            "cannot be combined with training.warmup and training.reference: the reference would be the model before "
            "the warm-up, because it is the model without adapters",
        )


def of_parallel(parallel: Parallel, *, groups: int, gpus: float = 0, compiled: bool = False) -> Iterator[Problem]:
    """Settings that this run does not support. `groups`: the groups of one step; 0 if it has none. `gpus`: those of all
    ranks together. `compiled`: whether layers are compiled. Limits of the model are checked when the model is read."""
    path = ("training", "parallel")
    if 0 < groups < parallel.with_other_groups:
        yield (
            path,
            f"has {parallel.with_other_groups} ranks (shard x replicate x expert) with groups of their own, more than "
            f"training.groups ({groups})",
        )
    if parallel.expert > 1 and parallel.tensor > 1:
        yield (*path, "expert"), "and tensor both divide the experts: have one of them"
    exchanging = [name for name in ("tensor", "context", "pipeline", "expert") if getattr(parallel, name) > 1]
    if compiled and exchanging:
        yield (
            ("training", "compile"),
            f"cannot be combined with training.parallel.{exchanging[0]}, whose ranks exchange tensors within layers; "
            "shard and replicate can",
        )
    if parallel.ranks > 1 and gpus % parallel.ranks:
        yield ("training", "gpus"), f"is {gpus:g}: its {parallel.ranks} ranks need as many whole GPUs each, or none"
