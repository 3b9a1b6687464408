"""Makes all checks and prints their results, for people or as JSON."""

from __future__ import annotations

import argparse
import locale
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from agentrl import __version__
from agentrl.client.run_processes import coordinator_of
from agentrl.config import installed_packages
from agentrl.config.load import load_config
from agentrl.config.paths import home, state_dir
from agentrl.config.run import RunConfig
from agentrl.doctor import host_checks, run_checks
from agentrl.doctor.check import Check
from agentrl.errors import ConfigError, ExitCode
from agentrl.host import cgroups


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
        checks += run_checks.check_inputs(config)
    _print(checks, as_json=options.json)
    return ExitCode.UNHEALTHY if any(check.verdict == "fail" for check in checks) else ExitCode.OK


def examine(config: RunConfig | None = None) -> Iterator[Check]:
    """All checks, with a configuration also the checks of its files, datasets and ports."""
    state = _state(config)
    yield host_checks.check_python(sys.version_info[:3])
    yield host_checks.check_packages(__version__, installed_packages.installed())
    yield host_checks.check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield host_checks.check_state_dir(state)
    yield host_checks.check_disk(state)
    yield host_checks.check_sockets()
    yield host_checks.check_processes()
    yield host_checks.check_cgroups(usable=cgroups.usable())
    yield host_checks.check_clock(time.time, time.monotonic, time.sleep)
    yield host_checks.check_mongod(needed=config is not None and config.has_mongo)
    yield from run_checks.check_sandboxes(*(config.tools, config.environments) if config is not None else ({},))
    yield from run_checks.check_tool_packages(config.tools if config is not None else {})
    yield host_checks.check_gpu(shutil.which("nvidia-smi"))
    yield host_checks.check_terminal(
        sys.stdout.isatty(), os.environ.get("TERM", ""), locale.getpreferredencoding(False)
    )
    if config is not None:
        yield from run_checks.check_files(config)
        yield from run_checks.check_inputs(config)
        yield from run_checks.check_tools(config)
    running = coordinator_of(state) if config is not None else None
    if config is not None and running is not None:
        yield from run_checks.check_clocks_of_hosts(config.name, state)
    if config is not None and config.coordinator.listen:
        yield run_checks.check_ports(config.coordinator.listen, running.pid if running else 0)


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


if __name__ == "__main__":
    sys.exit(main())
