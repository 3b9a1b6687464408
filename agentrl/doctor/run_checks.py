"""Checks of what the run of a file needs: sandboxes, packages, tools, model, data, database, ports; if it is up, the
clocks of its hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

from agentrl.client.blocking import BlockingClient
from agentrl.client.client import Client
from agentrl.config import file_checks
from agentrl.config.data_plane import Environment, ToolServer
from agentrl.config.run import RunConfig
from agentrl.config.secrets import resolve_secret
from agentrl.config.tool_lock import packages_of
from agentrl.config.tool_sandbox import Sandbox
from agentrl.doctor.check import Check
from agentrl.errors import AgentrlError, ConfigError
from agentrl.formatting.amounts import counted
from agentrl.formatting.row_text import clock_text
from agentrl.formatting.sentences import ended
from agentrl.images import run_images
from agentrl.protocol.rows import HostRow
from agentrl.sandboxes import sandbox_cgroups, sandbox_choice
from agentrl.store import datasets, server_checks
from agentrl.store.datasets import Row
from agentrl.store.demonstrations import parser_of, read_demonstrations
from agentrl.tool_environments import npm_packages, python_packages
from agentrl.transport.addresses import cannot_listen, tcp_triplet, why_not_free

ANSWER_WITHIN_S = 3.0


def check_files(config: RunConfig) -> Iterator[Check]:
    """The files that the run file names; only problems are reported."""
    for problem in file_checks.problems_of(config):
        yield Check("files", "fail", problem.message, problem.hint)


def check_sandboxes(
    servers: Mapping[str, ToolServer], environments: Mapping[str, Environment] = MappingProxyType({})
) -> Iterator[Check]:
    """Whether tool servers and environments get their sandboxes here; without a run, whether they can."""
    of_servers = {f"The tool server {name}": each.sandbox for name, each in servers.items() if not each.address}
    apart = {f"The environment {name}": each.sandbox for name, each in environments.items()}
    apart = {name: sandbox for name, sandbox in apart.items() if sandbox.kind != "none"}
    kinds = of_servers | apart or {"": Sandbox()}
    weaker = {name: lacks for name, sandbox in kinds.items() if (lacks := sandbox_choice.choose(sandbox).lacks)}
    for name, lacks in weaker.items():
        what, _, cure = lacks.partition("; ")
        required = kinds[name].required
        end = "is not started" if required else f"runs {sandbox_choice.choose(kinds[name]).place}"
        who = f"{name} {end}" if name else "Tool servers run without a sandbox"
        yield Check("sandboxes", "fail" if required else "warn", f"{who}: {what}.", f"{cure[:1].upper()}{cure[1:]}.")
    in_processes = any(sandbox_choice.choose(each).kind == "process" for each in kinds.values())
    if in_processes and (unlimited := sandbox_cgroups.unlimited_on_host()):
        what, _, cure = unlimited.partition("; ")
        yield Check("sandboxes", "warn", f"Of a sandbox {what}.", f"{cure[:1].upper()}{cure[1:]}.")
    elif not weaker:
        of_run = f"{len(of_servers)} tool servers" if servers else "Tool servers"
        of_run += f" and {len(apart)} environments" if apart else ""
        yield Check("sandboxes", "ok", f"{of_run} get the sandboxes that they are configured for.")


def check_tool_packages(servers: Mapping[str, ToolServer]) -> Iterator[Check]:
    """Whether the packages that tool servers name can be installed here; nothing if they name none."""
    named = {name: found for name, each in servers.items() if (found := packages_of(each))}
    if not named:
        return
    title = "tool packages"
    if loose := [name for name, (_, packages) in named.items() if not packages.locked]:
        sentence = f"The lock file does not pin the packages of {', '.join(loose)}."
        yield Check(title, "fail", sentence, "Pin them: `agentrl tools lock RUN.yaml`.")
    try:
        python_packages.refuse_without_pip()
    except ConfigError as missing:
        yield Check(title, "fail", missing.message, missing.hint)
    else:
        yield Check(title, "ok", f"Packages of {len(named)} tool servers can be installed with pip.")
    if any(kind == "npm" for kind, _ in named.values()) and (lacks := npm_packages.lacks_node()):
        sentence = f"npm packages run with the Node.js of a wheel: {lacks}."
        hint = f"Install Node.js {npm_packages.LEAST_NODE} or newer with npm to save a download of 60 MB."
        yield Check(title, "warn", sentence, hint)


def check_tools(config: RunConfig) -> Iterator[Check]:
    """Calls every tool once, or reports that it was not tried."""
    from agentrl.toolbox import preflight  # Imported late: it imports the SDK of MCP, which few checks need.

    servers = [name for name, each in config.tools.items() if not packages_of(each)]
    if not config.environments or not servers or any("toolbox" in host.runs for host in config.all_hosts.values()):
        return
    found: list[preflight.Trial] = []
    asyncio.run(preflight.try_tools(config, servers, found.append))
    works = sum(trial.verdict == "works" for trial in found)
    yield Check("tools", "ok", f"{counted(works, 'tools')} answered when called once.")
    for trial in found:
        if trial.verdict != "works":
            yield Check("tools", "fail" if trial.verdict == "fails" else "warn", trial.sentence, trial.hint)


def check_inputs(config: RunConfig) -> Iterator[Check]:
    """The model, the demonstrations and the datasets that the run reads, and the server that it stores in."""
    if config.environments or config.is_job:
        yield from check_model(config)
        yield from check_demonstrations(config)
    yield from check_datasets(config)
    yield from check_database(config)


def check_database(config: RunConfig) -> Iterator[Check]:
    """Whether the MongoDB server of the URL keeps what the store promises; nothing for an embedded one."""
    if config.mongo.url is None:
        return
    try:
        url = resolve_secret(config.mongo.url)
    except ConfigError as missing:
        yield Check("mongodb", "fail", missing.message, missing.hint)
        return
    for found in server_checks.check(url, config.name):
        yield Check(*found)


def check_model(config: RunConfig) -> Iterator[Check]:
    """Whether engines and trainer can work with the model."""
    if config.model is None or not config.model.path:
        return
    try:
        # Imported here, because a host that only watches runs has no tokenizers.
        from agentrl.training.model_check import refuse_model
    except ImportError as missing:
        yield Check("model", "warn", f"The model was not checked: {missing}.", "`pip install 'agentrl[train]'`")
        return
    try:
        refuse_model(config)
    except ConfigError as wrong:
        yield Check("model", "fail", wrong.message, wrong.hint)
    else:
        yield Check("model", "ok", f"{config.model.path} can be served and trained.")


def check_demonstrations(config: RunConfig) -> Iterator[Check]:
    """The first rows of the demonstrations."""
    training = config.training
    named = {"training.warmup.dataset": training.warmup.dataset}
    if config.is_job:
        # `file_checks` names a file that is missing.
        given = training.demonstrations
        named = {"training.demonstrations": given if given and Path(given).is_file() else ""}
    for key, place in named.items():
        try:
            if place:
                read_demonstrations(place, parser=parser_of(config), most=datasets.LOOKED_AT_ROWS)
        except (ConfigError, OSError) as wrong:
            made_by = next((each.made_by for each in config.environments.values() if each.made_by), "")
            hint = f"It is made by `{made_by}`." if made_by and not Path(place).exists() else ""
            sentence = ended(f"{key}: {getattr(wrong, 'message', wrong)}")
            yield Check("demonstrations", "fail", sentence, hint or getattr(wrong, "hint", ""))


def check_datasets(config: RunConfig) -> Iterator[Check]:
    """The datasets of the environments; of large files the first rows."""
    for name, environment in config.environments.items():
        looked: list[tuple[list[Row], bool]] = []
        named = [place for place in (environment.dataset, environment.evaluation) if place]
        for place in named:
            try:
                looked.append(datasets.look(place))
            except (ConfigError, OSError) as wrong:
                hint = _cure(environment, wrong)
                sentence = ended(f"environments.{name}: {getattr(wrong, 'message', wrong)}")
                yield Check(f"dataset of {name}", "fail", sentence, hint)
        if len(looked) < len(named):
            continue
        (rows, whole), (separate, _) = looked[0], looked[1] if len(looked) > 1 else ([], True)
        train = datasets.split_of(rows, "train", default="train")
        held_out = datasets.split_of(rows, "eval", default="train")
        held_out += datasets.split_of(separate, "eval", default="eval")
        yield _split(name, environment.dataset, train, held_out, whole=whole)
        for row in (*train, *held_out):
            if problem := run_images.problem_of(config, row.query, *(one.content for one in row.earlier)):
                sentence = f"environments.{name}: {row.file_and_number}: {problem}"
                yield Check(f"images of {name}", "fail", sentence, "See `images` in docs/models.md.")
                break


def _cure(environment: Environment, wrong: ConfigError | OSError) -> str:
    named = (environment.dataset, environment.evaluation)
    if environment.made_by and not all(Path(file).exists() for file in named if file):
        return f"It is made by `{environment.made_by}`."
    return getattr(wrong, "hint", "") or "The steward reads it when it starts, and would refuse it."


def _split(name: str, place: str, train: list[Row], held_out: list[Row], *, whole: bool) -> Check:
    title = f"dataset of {name}"
    leaks = datasets.leaks(train, held_out)
    if not train and whole:
        return Check(title, "fail", f"{place} has no rows to train on: all of them are held out.", "Add some.")
    if leaks:
        counted = f"{len(leaks)} of {len(held_out)} held-out prompts are also in the training split"
        sentence = f"environments.{name}: {counted}; {leaks[0].lines()}."
        return Check(title, "warn", sentence, "Remove them from one split: evaluation results on them are too good.")
    if not any(row.answer for row in (*train, *held_out)):
        columns = ", ".join((train or held_out)[0].extra) or "none besides the query"
        sentence = (
            f"environments.{name}: no row has an answer, which scorers compare with; other columns are: {columns}."
        )
        return Check(title, "warn", sentence, f"Name the column one of {', '.join(datasets.ALIASES['answer'])}.")
    counted = f"{len(train)} rows to train on, {len(held_out)} held out"
    read = "." if whole else f" among the first {datasets.LOOKED_AT_ROWS}; the rest was not read."
    return Check(title, "ok", f"{counted}{read}")


def check_clocks_of_hosts(name: str, state: Path) -> Iterator[Check]:
    """Whether the clocks of a run that is up agree; nothing if its coordinator does not answer."""
    try:
        with BlockingClient(Client.connect(name, state_dir=state, timeout_s=ANSWER_WITHIN_S)) as client:
            hosts = [row for row in client.snapshot().rows.values() if isinstance(row, HostRow)]
    except AgentrlError:
        return
    off = {row.host: text for row in hosts if (text := clock_text(row))}
    for host, text in off.items():
        hint = "Let ntp or chrony set it; no lease depends on it, but times in logs and traces are wrong."
        yield Check("clocks of hosts", "warn", f"{host}: {text}.", hint)
    if not off:
        yield Check("clocks of hosts", "ok", f"The clocks of {counted(len(hosts), 'hosts')} agree.")


def check_ports(listen: str, coordinator_pid: int) -> Check:
    """Whether the three ports of the coordinator are free, or in use by the coordinator of this run."""
    addresses = tcp_triplet(listen)
    taken = {address: why for address in addresses if (why := why_not_free(address))}
    if not taken:
        return Check("ports", "ok", f"Free: {', '.join(addresses)}.")
    if coordinator_pid and psutil.pid_exists(coordinator_pid):
        return Check("ports", "ok", f"In use; the coordinator of this run (pid {coordinator_pid}) is up.")
    address, why = next(iter(taken.items()))
    refused = cannot_listen(address, why)
    return Check("ports", "fail", refused.message, refused.hint)
