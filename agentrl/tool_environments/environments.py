"""Finds and installs the environment of a tool server by its pins.

Invariants:
- The path of an environment is a function of its pins and, for Python, of the interpreter.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_lock import kept_pins, packages_of
from agentrl.errors import ConfigError
from agentrl.formatting.amounts import counted
from agentrl.tool_environments import environment_cache, npm_packages, python_packages

Report = Callable[[str], None]
"""Gets a clause that says what is being done."""
_KEY_DIGITS = 12


def path_of(pins: dict[str, Any], what: str) -> Path:
    """The path of the environment, whether or not it exists. Raises ConfigError if the packages were never locked on
    such a host."""
    entry = pins["server"]
    if entry["kind"] == "python":
        of_host: Any = python_packages.pins_for_this_host(entry["pins"], what)
        depends_on = [entry["build"], of_host, python_packages.interpreter()]
    else:
        npm_packages.refuse_changed(entry["pins"], what)
        depends_on = [entry["build"], entry["pins"]]
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
    slug = re.split(r"[=<>!~\[@ ;]", str(entry["packages"][0]).lstrip("@").replace("/", "-"))[0]
    return environment_cache.root() / f"{entry['kind']}-{slug[:40]}-{key}"


def environment_of(name: str, server: ToolServer, run_dir: Path) -> Path | None:
    """The environment of a server of this run; None if the server has no packages."""
    found = packages_of(server)
    return None if found is None else path_of(kept_pins(name, found[1], run_dir), f"The packages of {name}")


def install(name: str, pins: dict[str, Any], report: Report) -> tuple[Path, bool]:
    """Install the packages of a server unless they are installed. Returns the path, and whether this call installed
    them."""
    entry = pins["server"]
    what = f"The packages of {name}"
    failed = f"{what} were not installed"
    place = path_of(pins, what)
    wanted = " ".join(entry["packages"])
    description = {"kind": entry["kind"], "packages": entry["packages"]}
    if entry["kind"] == "python":
        of_host = python_packages.pins_for_this_host(entry["pins"], what)

        def build(aside: Path, lock: int) -> None:
            report(f"installing the packages of {name}: {wanted}, {counted(len(of_host), 'packages')} in all")
            python_packages.install(of_host, aside, build=entry["build"], final=place, lock=lock, what=failed)

        return place, environment_cache.make(place, build, {**description, "count": len(of_host)}, report)

    if environment_cache.is_usable(place):
        return place, False
    node = node_for(what, pins["node"], report)
    count = npm_packages.count_of(entry["pins"])

    def build_npm(aside: Path, lock: int) -> None:
        report(f"installing the packages of {name}: {wanted}, {counted(count, 'packages')} in all")
        npm_packages.install(entry["pins"], aside, node, build=entry["build"], lock=lock, what=failed)

    return place, environment_cache.make(place, build_npm, {**description, "count": count}, report)


def node_for(what: str, wheel: dict[str, Any], report: Report) -> npm_packages.Node:
    """The Node.js of this host if it can be used, otherwise the one of the pinned wheel."""
    lacks = npm_packages.lacks_node()
    if not lacks:
        return npm_packages.node_of_host()
    if not wheel:
        raise ConfigError(
            f"{what} cannot be installed without Node.js: {lacks}.",
            hint="Install node and npm, or pin the wheel with Node.js: `agentrl tools lock`.",
        )
    report(f"taking Node.js from a wheel, because {lacks}")
    place, _ = install("Node.js", {"server": {**wheel, "build": False}, "node": {}}, report)
    return npm_packages.node_of_wheel(place)


def refuse_unknown_program(name: str, program: str, kind: str, place: Path) -> None:
    """Raises ConfigError if neither the packages nor the host have this program."""
    if "/" in program or "{" in program or (place / "bin" / program).exists() or shutil.which(program):
        return
    of_kind = python_packages if kind == "python" else npm_packages
    found = of_kind.programs_of(place)
    most = 8
    programs = f"{', '.join(found[:most])}{', ...' if len(found) > most else ''}" or "none"
    raise ConfigError(f"tools.{name}.command: its packages have no program {program}; they have {programs}.")
