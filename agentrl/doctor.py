"""Checks whether a run can work here: `python -m agentrl.doctor [--json] [--inputs] [--set A.B=C] [RUN.yaml]`.

* A check leaves nothing behind.
* Every check answers with a sentence, and with a hint if something is wrong.
* `fail` is only for a fault that stops a run.
"""

from __future__ import annotations

import argparse
import asyncio
import locale
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec
import psutil

from agentrl import __version__
from agentrl.client.blocking import BlockingClient
from agentrl.client.client import Client
from agentrl.client.run_processes import coordinator_of
from agentrl.config import file_checks, installed_packages
from agentrl.config.data_plane import Environment, ToolServer
from agentrl.config.load import load_config
from agentrl.config.paths import home, state_dir
from agentrl.config.run import RunConfig
from agentrl.config.secrets import resolve_secret
from agentrl.config.tool_lock import packages_of
from agentrl.config.tool_sandbox import Sandbox
from agentrl.control.persistence.state_lock import refuse_network_file_system
from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.formatting.amounts import counted, size
from agentrl.formatting.row_text import clock_text
from agentrl.formatting.sentences import ended
from agentrl.host import cgroups
from agentrl.images import run_images
from agentrl.protocol.rows import HostRow
from agentrl.sandboxes import sandbox_cgroups, sandbox_choice
from agentrl.store import datasets, server_checks
from agentrl.store.datasets import Row
from agentrl.store.demonstrations import parser_of, read_demonstrations
from agentrl.store.mongod_binary import find_mongod, mongod_version
from agentrl.tool_environments import npm_packages, python_packages
from agentrl.transport.addresses import IPC_PATH_MAX_BYTES, cannot_listen, hub_address, tcp_triplet, why_not_free

PYTHON_AT_LEAST = (3, 11)
FILES_AT_LEAST = 256
FILES_COMFORTABLE = 4096
DISK_AT_LEAST_BYTES = 256 << 20
DISK_COMFORTABLE_BYTES = 5 << 30
CLOCK_WATCHED_S = 0.1
CLOCK_STEP_S = 0.02
ANSWER_WITHIN_S = 3.0

Verdict = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    verdict: Verdict
    sentence: str
    hint: str = ""
    """What to do; empty if nothing."""


def examine(config: RunConfig | None = None) -> Iterator[Check]:
    """All checks, with a configuration also the checks of its files, datasets and ports."""
    state = _state(config)
    yield check_python(sys.version_info[:3])
    yield check_packages(__version__, installed_packages.installed())
    yield check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield check_state_dir(state)
    yield check_disk(state)
    yield check_sockets()
    yield check_processes()
    yield check_cgroups(usable=cgroups.usable())
    yield check_clock(time.time, time.monotonic, time.sleep)
    yield check_mongod(needed=config is not None and config.has_mongo)
    yield from check_sandboxes(*(config.tools, config.environments) if config is not None else ({},))
    yield from check_tool_packages(config.tools if config is not None else {})
    yield check_gpu(shutil.which("nvidia-smi"))
    yield check_terminal(sys.stdout.isatty(), os.environ.get("TERM", ""), locale.getpreferredencoding(False))
    if config is not None:
        yield from check_files(config)
        yield from check_inputs(config)
        yield from check_tools(config)
    running = coordinator_of(state) if config is not None else None
    if config is not None and running is not None:
        yield from check_clocks_of_hosts(config.name, state)
    if config is not None and config.coordinator.listen:
        yield check_ports(config.coordinator.listen, running.pid if running else 0)


def check_python(version: tuple[int, ...]) -> Check:
    found, least = (".".join(map(str, each)) for each in (version, PYTHON_AT_LEAST))
    if version < PYTHON_AT_LEAST:
        return Check("python", "fail", f"Python {found} is too old.", f"Use Python {least} or newer.")
    return Check("python", "ok", f"Python {found}.")


def check_packages(version: str, installed: Mapping[str, tuple[str, Sequence[str]]]) -> Check:
    """`installed`: name -> version and requirements, of agentrl and its dependencies; no version: missing."""
    if "agentrl" not in installed:
        sentence = f"agentrl {version} runs from a directory; the versions of its dependencies are not checked."
        return Check("packages", "warn", sentence, "Install it: `pip install -e .` in the checkout.")
    own, requirements = installed["agentrl"]
    wrong = [] if own == version else [f"agentrl is {version} here, but {own} is installed"]
    for requirement in requirements:
        name, _, condition = installed_packages.requirement_of(requirement)
        found = installed.get(name, ("", ()))[0]
        if not found:
            wrong.append(f"{name} is missing")
        elif not installed_packages.satisfies(found, condition):
            wrong.append(f"{name} is {found}, wanted {condition}")
    if wrong:
        return Check("packages", "fail", f"{'; '.join(wrong)}.", "Install again: `pip install -U agentrl`.")
    return Check("packages", "ok", f"agentrl {version} and {len(requirements)} dependencies agree.")


def check_open_files(soft: int, hard: int) -> Check:
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= FILES_COMFORTABLE:
        return Check("open files", "ok", f"{'Any number of' if soft == unlimited else soft} files may be open.")
    reachable = FILES_COMFORTABLE if hard == unlimited else min(hard, FILES_COMFORTABLE)
    hint = f"`ulimit -n {reachable}` before `agentrl up`."
    sentence = f"Only {soft} files may be open; each unit needs a few."
    return Check("open files", "warn" if soft >= FILES_AT_LEAST else "fail", sentence, hint)


def check_state_dir(directory: Path) -> Check:
    existing = _existing(directory)
    try:
        refuse_network_file_system(existing)
        with tempfile.TemporaryFile(dir=existing):
            pass
    except ConfigError as remote:
        return Check("state directory", "fail", remote.message, remote.hint)
    except OSError as refused:
        sentence = f"{directory} cannot be written: {refused.strerror}."
        return Check("state directory", "fail", sentence, "Set AGENTRL_HOME to a directory of yours on a local disk.")
    return Check("state directory", "ok", f"{directory} is on a local disk and can be written.")


def check_disk(directory: Path) -> Check:
    free = shutil.disk_usage(_existing(directory)).free
    sentence = f"{size(free)} are free for {directory}."
    if free >= DISK_COMFORTABLE_BYTES:
        return Check("disk", "ok", sentence)
    verdict: Verdict = "warn" if free >= DISK_AT_LEAST_BYTES else "fail"
    return Check("disk", verdict, sentence, "Free some space, or set AGENTRL_HOME to a larger disk.")


def check_sockets() -> Check:
    """The directory of local sockets, with the path length that the system allows."""
    try:
        path = Path(hub_address(uuid.uuid4().hex).removeprefix("ipc://"))
    except AgentrlError as refused:
        return Check("sockets", "fail", refused.message, refused.hint)
    with suppress(OSError):
        path.parent.rmdir()
    length = len(os.fsencode(path))
    return Check(
        "sockets", "ok", f"Socket paths below {path.parent.parent} have {length} of {IPC_PATH_MAX_BYTES} bytes."
    )


def check_processes(proc: Path = Path("/proc")) -> Check:
    """Whether processes can be found by their mark and watched by pidfd."""
    try:
        own = (proc / "self" / "environ").read_bytes() is not None and (proc / "self" / "stat").exists()
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as refused:
        sentence = f"Processes cannot be watched here: {refused}."
        return Check("processes", "fail", sentence, "Linux 5.3 or newer with /proc mounted is needed.")
    if not own:
        return Check("processes", "fail", "/proc is not complete.", "Mount /proc.")
    if not (proc / "1" / "stat").exists():
        sentence = "/proc hides the processes of others; the proof of `down` covers your own."
        return Check("processes", "warn", sentence, "Mount /proc without hidepid if others' processes belong to runs.")
    return Check("processes", "ok", "Processes can be found by their mark and watched.")


def check_cgroups(*, usable: bool) -> Check:
    if usable:
        return Check("cgroups", "ok", "Every unit gets a cgroup, by which its process tree is found and killed.")
    return Check(
        "cgroups",
        "warn",
        "No cgroup can be made: process trees are found by a scan of /proc, memory limits are enforced by sampling.",
        "Start under `systemd-run --user --scope -p Delegate=yes` to have them.",
    )


def check_clock(wall: Callable[[], float], steady: Callable[[], float], sleep: Callable[[float], None]) -> Check:
    """Whether the monotonic clock and the wall clock agree. Supervision uses the first, people read the second."""
    before = wall() - steady()
    sleep(CLOCK_WATCHED_S)
    step = wall() - steady() - before
    built = Path(__file__).stat().st_mtime
    if wall() < built - 86_400:
        sentence = "The clock is behind: this program was installed in its future."
        return Check("clock", "warn", sentence, "Set the time; times in logs and alerts would be wrong.")
    if abs(step) > CLOCK_STEP_S:
        sentence = f"The wall clock moved by {step * 1000:+.0f} ms against the steady one."
        return Check("clock", "warn", sentence, "Let ntp or chrony slew it; supervision itself is not affected.")
    return Check("clock", "ok", "Wall clock and steady clock run alike.")


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


def check_mongod(*, needed: bool) -> Check:
    try:
        binary = find_mongod()
        return Check("mongod", "ok", f"mongod {mongod_version(binary)} runs: {binary}.")
    except ConfigError as missing:
        return Check("mongod", "fail" if needed else "warn", missing.message, missing.hint)


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


def check_gpu(tool: str | None) -> Check:
    if tool is None:
        return Check("gpu", "ok", "There is no nvidia-smi; this host counts as one without GPUs.")
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as broken:
        return Check("gpu", "warn", f"nvidia-smi does not answer: {broken}.", "Look at the driver.")
    if answer.returncode != 0:
        complaint = (answer.stderr or answer.stdout).strip().partition("\n")[0]
        return Check("gpu", "warn", f"nvidia-smi fails: {complaint}", "Look at the driver: `nvidia-smi`.")
    cards = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return Check("gpu", "ok", f"{len(cards)} GPU{'s' if len(cards) != 1 else ''}: {'; '.join(cards)}.")


def check_terminal(is_terminal: bool, kind: str, encoding: str) -> Check:
    if "utf" not in encoding.lower():
        sentence = f"The encoding is {encoding}; other characters will be displayed wrongly."
        return Check("terminal", "warn", sentence, "`export LANG=C.UTF-8`.")
    if is_terminal and kind in ("", "dumb"):
        return Check("terminal", "warn", f"TERM is {kind!r}: no colours, no screen.", "`export TERM=xterm-256color`.")
    return Check("terminal", "ok", f"{kind if is_terminal else 'No terminal'}, {encoding}.")


def check_files(config: RunConfig) -> Iterator[Check]:
    """The files that the run file names; only problems are reported."""
    for problem in file_checks.problems_of(config):
        yield Check("files", "fail", problem.message, problem.hint)


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="agentrl doctor", description="Check whether a run can live here.")
    parser.add_argument("run", nargs="?", metavar="RUN.yaml", help="also check what this run needs")
    parser.add_argument("--json", action="store_true", help="print a list of checks as JSON")
    parser.add_argument("--inputs", action="store_true", help="look at nothing but the run's model, data and database")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="as of `agentrl up`")
    options = parser.parse_args(arguments)
    checks: list[Check] = []
    config: RunConfig | None = None
    if options.run:
        try:
            config = load_config(options.run, sets=tuple(options.set)).config
            checks.append(Check("run file", "ok", f"{options.run} describes the run {config.name}."))
        except ConfigError as wrong:
            checks.append(Check("run file", "fail", wrong.message, wrong.hint))
    if not options.inputs:
        checks += examine(config)
    elif config is not None:
        checks += check_inputs(config)
    _print(checks, as_json=options.json)
    return ExitCode.UNHEALTHY if any(check.verdict == "fail" for check in checks) else ExitCode.OK


def _print(checks: Sequence[Check], *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode())
        return
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.verdict:4}  {check.name:{width}}  {check.sentence}")
        if check.hint:
            print(f"{'':4}  {'':{width}}  -> {check.hint}")


def _state(config: RunConfig | None) -> Path:
    if config is None:
        return home()
    return Path(config.coordinator.state_dir) if config.coordinator.state_dir else state_dir(config.name)


def _existing(directory: Path) -> Path:
    """The directory itself or the nearest one above it that exists."""
    return next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())


if __name__ == "__main__":
    sys.exit(main())
