"""Locks, installs, lists and removes packages of tool servers: `python -m agentrl.tool_environments VERB`.

`up`, `agentrl tools` and toolboxes run it as a process of its own. Each line of its output is a JSON document: a `step`
that is under way, a `note` for people, `environments`, or an `error` at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from agentrl.config.load import Loaded, load_config
from agentrl.config.tool_lock import ToolLock, packages_of
from agentrl.config.tool_packages import PackageKind, Packages
from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.formatting.amounts import counted, size
from agentrl.tool_environments import environment_cache, environments, npm_packages, python_packages


def install(wanted: list[dict[str, Any]]) -> None:
    """Install the packages of some servers; each has `name`, `program` and `pins`."""
    for each in wanted:
        name, pins = each["name"], each["pins"]
        began = time.monotonic()
        place, is_new = environments.install(name, pins, _step)
        if is_new:
            about = json.loads((place / environment_cache.DESCRIPTION).read_bytes())
            seconds = time.monotonic() - began
            _emit(note=f"The packages of {name} are installed: {counted(about['count'], 'packages')}, {seconds:.0f} s.")
        environments.refuse_unknown_program(name, each["program"], pins["server"]["kind"], place)


def lock(loaded: Loaded, *, renew: bool) -> None:
    """Pin the packages of all servers of a run file. Pins of packages that did not change stay, unless `renew`."""
    if loaded.path is None:
        raise ConfigError("There is no run file.", hint="Name it: RUN.yaml.")
    before = ToolLock.beside(loaded.path)
    node, servers = before.node, {}
    wanted = {name: found for name, server in loaded.config.tools.items() if (found := packages_of(server))}
    if any(kind == "npm" for kind, _ in wanted.values()):
        packages = Packages(packages=(npm_packages.NODE_WHEEL,))
        node = _locked("Node.js", "python", packages, {} if renew else before.node, {})
    for name, (kind, packages) in wanted.items():
        old = before.servers.get(name, {}) if not renew and before.pins_of(name, kind, packages) else {}
        servers[name] = _locked(name, kind, packages, old, node)
    after = ToolLock(before.path, servers, node if any(each["kind"] == "npm" for each in servers.values()) else {})
    if not servers and not before.servers:
        _emit(note=f"No tool server of {loaded.path} names packages.")
        return
    if after == before:
        _emit(note=f"{after.path} already pins the packages of {counted(len(servers), 'tool servers')}.")
        return
    after.write()
    _emit(note=f"{after.path} pins the packages of {counted(len(servers), 'tool servers')}. Commit it.")


def _locked(
    name: str, kind: PackageKind, packages: Packages, old: dict[str, Any], node: dict[str, Any]
) -> dict[str, Any]:
    """The entry of a server in the lock file; `old` is the one for the same packages, if there is one."""
    words = packages.packages
    what = f"The packages of {name} cannot be pinned"
    entry: dict[str, Any] = {"kind": kind, "packages": list(words), "build": packages.build}
    pins: dict[str, Any] = old.get("pins", {}) if old.get("packages") == list(words) else {}
    here = python_packages.this_platform()
    if kind == "npm" and not pins:
        _emit(step=f"{name}: npm looks for {' '.join(words)}")
        pins = npm_packages.pins_of(words, environments.node_for(f"The packages of {name}", node, _step), what=what)
    elif kind == "python" and here not in pins:
        _emit(step=f"{name}: pip looks for {' '.join(words)}")
        elsewhere: list[dict[str, Any]] = next(iter(pins.values()), [])
        pins = {**pins, here: python_packages.pins_of(words, build=packages.build, before=elsewhere, what=what)}
    return {**entry, "pins": pins}


def _step(clause: str) -> None:
    _emit(step=clause)


def _emit(**line: object) -> None:
    print(json.dumps(line), flush=True)


def _listed(found: Sequence[environment_cache.Environment]) -> list[dict[str, object]]:
    return [{**dataclasses.asdict(each), "path": str(each.path)} for each in found]


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Makes SIGTERM an exception, so that a terminated installation removes its directory like a failed one."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.tool_environments")
    verbs = parser.add_subparsers(dest="verb", required=True)
    locking = verbs.add_parser("lock")
    locking.add_argument("run", type=Path)
    locking.add_argument("--set", action="append", default=[])
    locking.add_argument("--renew", action="store_true")
    verbs.add_parser("install", help="what to install is read from stdin, as JSON")
    verbs.add_parser("list")
    verbs.add_parser("remove-unused")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        match options.verb:
            case "lock":
                lock(load_config(options.run, sets=tuple(options.set)), renew=options.renew)
            case "install":
                install(json.load(sys.stdin))
            case "list":
                _emit(environments=_listed(environment_cache.environments()))
            case "remove-unused":
                removed = environment_cache.remove_unused()
                _emit(environments=_listed(removed))
                _emit(note=f"Removed: {counted(len(removed), 'environments')}, {size(sum(e.bytes for e in removed))}.")
    except AgentrlError as failed:
        _emit(error=failed.message, hint=failed.hint, exit=int(failed.exit_code))
        return int(failed.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
