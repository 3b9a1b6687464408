"""Chooses the sandbox of each tool server: the configured kind, or, unless that is required, what this host has.

Invariants:
- A required sandbox that this host lacks refuses the start, with a sentence that says what to install.
- If the sandbox is weaker than configured, or has no cgroups, the status of the server says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.config.typed_paths import path_of
from agentrl.errors import ConfigError
from agentrl.sandboxes import bubblewrap, containers, network_access, sandbox_cgroups, system_calls
from agentrl.sandboxes.launch_environment import Launch, filled
from agentrl.sandboxes.network_access import NetworkAccess
from agentrl.sandboxes.visible_files import Secrets, search_path, visible_files

Kind = Literal["none", "process", "container"]
_WEAKER: Mapping[Kind, tuple[Kind, ...]] = {
    "none": ("none",),
    "process": ("process", "none"),
    "container": ("container", "process", "none"),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The sandbox that a server gets here."""

    kind: Kind
    lacks: str = ""
    """Why it is weaker than configured; empty if it is not."""
    unlimited: str = ""
    """Which limits hold only for each process, not for all processes together."""

    @property
    def place(self) -> str:
        return "without a sandbox" if self.kind == "none" else f"in a {self.kind} sandbox"

    @property
    def sentence(self) -> str:
        """For the status of the server."""
        if self.lacks or self.unlimited:
            return f"{self.place}: {'; '.join(filter(None, (self.lacks, self.unlimited)))}"
        return f"{self.place}, as configured" if self.kind == "none" else self.place


def choose(sandbox: Sandbox) -> Choice:
    lacks: list[str] = []
    for kind in _WEAKER[sandbox.kind]:
        problem = _problem(kind)
        if not problem:
            lacks += [weakness] if (weakness := _weakness(kind)) else []
            limited = kind != "process"
            unlimited = "" if limited else sandbox_cgroups.unlimited(sandbox_cgroups.usable_places())
            return Choice(kind, "; ".join(lacks), unlimited)
        lacks.append(problem)
    raise AssertionError("the kind none always works")


def choose_or_refuse(key: str, sandbox: Sandbox) -> Choice:
    """Raises ConfigError if the sandbox at this key of the run file is required and this host lacks it."""
    choice = choose(sandbox)
    if sandbox.required and choice.lacks:
        raise ConfigError(f"{key} requires the kind {sandbox.kind}: {choice.lacks}.")
    return choice


def sandboxed(
    name: str,
    server: ToolServer,
    launch: Launch,
    *,
    run_dir: Path,
    secrets: Secrets,
    network: NetworkAccess | None = None,
    section: str = "tools",
) -> Launch:
    """The start of the server in its sandbox; without `network` its list of hosts is empty.

    `section` is that of the run file which has `name`. Raises ConfigError if that is not possible.
    """
    sandbox = server.sandbox
    choice = choose_or_refuse(f"{section}.{name}.sandbox", sandbox)
    # If the program does not exist, its start fails with that reason.
    if choice.kind == "none" or (choice.kind == "process" and not launch.program):
        return launch
    read, write = ([path_of(filled(path, run_dir)) for path in paths] for paths in (sandbox.read, sandbox.write))
    if choice.kind == "container":
        return containers.launch(name, launch, sandbox, read=read, write=write)
    env = dict(launch.env) | ({} if "HOME" in server.env else {"HOME": bubblewrap.HOME})
    env.pop("TMPDIR", None)
    try:
        rules = visible_files(launch, read=read, write=write, secrets=secrets)
    except ConfigError as wrong:
        raise ConfigError(f"{section}.{name}.sandbox: {wrong.message}", hint=wrong.hint) from None
    if "PATH" not in server.env:
        env["PATH"] = search_path(env.get("PATH", os.defpath), rules)
    inside, inherited = launch.command, launch.inherited
    if sandbox.allowed_hosts and network is not None:
        theirs = network.admit(name, sandbox.allowed_hosts, section=section)
        inside, inherited = network_access.command_inside(inside, theirs), (*inherited, theirs)
        env = network_access.environment(sandbox.allowed_hosts) | env
    filter_of_calls = -1
    if not bubblewrap.problem_of_filter():
        calls = system_calls.filter_file()
        filter_of_calls, inherited = calls.fileno(), (*inherited, calls)
    command = bubblewrap.command_line(inside, launch.cwd, sandbox, rules, filter_of_calls=filter_of_calls)
    cgroup = sandbox_cgroups.make(sandbox)
    if cgroup is not None:
        command = cgroup.entered(command)
    return replace(launch, command=command, env=env, sandbox="process", cgroup=cgroup, inherited=inherited)


def _problem(kind: Kind) -> str:
    match kind:
        case "process":
            return bubblewrap.problem()
        case "container":
            return containers.problem()
        case "none":
            return ""


def _weakness(kind: Kind) -> str:
    """What a sandbox of this kind lacks here; empty if nothing."""
    return bubblewrap.problem_of_filter() if kind == "process" else ""
