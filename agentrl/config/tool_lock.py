"""Reads and writes the lock file of a run file, which pins the packages of its tool servers.

`run.yaml` has `run.tools.lock` beside it. A person commits both, so that each host installs the same files.

Invariants:
- A pin is an exact version with the hash of its content. No address of a registry is in the file.
- Pins count only for the packages that they were made for; a changed run file needs new ones.
- A lock file that cannot be read pins nothing, and `problem` has the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config.data_plane import ToolServer
from agentrl.config.paths import PINS
from agentrl.config.run import RunConfig
from agentrl.config.tool_packages import PackageKind, Packages
from agentrl.errors import ConfigError, DiskError

FORMAT = 1
_DIGITS = 24


@dataclass(frozen=True, slots=True)
class ToolLock:
    """The content of a lock file."""

    path: Path
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each server by name: `kind`, `packages`, `build` and `pins`."""
    node: dict[str, Any] = field(default_factory=dict)
    """Pins of a Node.js for hosts that have none; empty without npm packages."""
    problem: str = ""
    """Why the file could not be read."""

    @staticmethod
    def beside(run_file: Path) -> ToolLock:
        """The lock of this run file; empty if there is none."""
        path = run_file.with_suffix(".tools.lock")
        try:
            plain = json.loads(path.read_bytes())
            if plain["format"] != FORMAT:
                return ToolLock(path, problem=f"it has the format {plain['format']}, and this release reads {FORMAT}")
            return ToolLock(path, dict(plain["servers"]), dict(plain["node"]))
        except FileNotFoundError:
            return ToolLock(path)
        except OSError as broken:
            return ToolLock(path, problem=f"it cannot be read: {broken.strerror}")
        except (ValueError, KeyError, TypeError):
            return ToolLock(path, problem="it is damaged")

    def write(self) -> None:
        """Replace the file as a whole. Raises DiskError."""
        plain = {"format": FORMAT, "servers": self.servers, "node": self.node}
        _replace(self.path, json.dumps(plain, indent=1, sort_keys=True) + "\n")

    def pins_of(self, name: str, kind: PackageKind, packages: Packages) -> dict[str, Any] | None:
        """The pins for these packages; None if the file was made for other packages."""
        entry = self.servers.get(name, {})
        if (entry.get("kind"), entry.get("packages"), entry.get("build")) != (
            kind,
            list(packages.packages),
            packages.build,
        ):
            return None
        return {"server": entry, "node": self.node if kind == "npm" else {}}


def packages_of(server: ToolServer) -> tuple[PackageKind, Packages] | None:
    """The kind and the packages of a server; None if it has none."""
    if server.python is not None:
        return "python", server.python
    return ("npm", server.npm) if server.npm is not None else None


def keep_pins(config: RunConfig, run_file: Path, run_dir: Path) -> None:
    """Write the pins of all servers into the run directory, from which toolboxes install removed packages again.

    A file is named by the hash of its content, so later writes never change the pins of a run that is up.
    """
    lock = ToolLock.beside(run_file)
    for name, server in config.tools.items():
        found = packages_of(server)
        pins = lock.pins_of(name, *found) if found else None
        if pins is not None:
            _replace(run_dir / PINS / f"{digest_of(pins)}.json", json.dumps(pins))


def kept_pins(name: str, packages: Packages, run_dir: Path) -> dict[str, Any]:
    """The pins that `keep_pins` wrote. Raises ConfigError if they were never written."""
    path = run_dir / PINS / f"{packages.locked}.json"
    try:
        pins: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise ConfigError(
            f"The pins of the packages of {name} are not in {run_dir / PINS}.",
            hint="`agentrl up RUN.yaml` on the host of the run writes them.",
        ) from None
    return pins


def digest_of(pins: Mapping[str, Any]) -> str:
    plain = json.dumps(pins, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(plain).hexdigest()[:_DIGITS]


def with_digests(config: RunConfig, lock: ToolLock) -> RunConfig:
    """The configuration in which each server with packages has the digest of its pins, so that a changed pin is a
    changed value."""
    tools = {name: _with_digest(name, server, lock) for name, server in config.tools.items()}
    return config.model_copy(update={"tools": tools}) if tools != config.tools else config


def _with_digest(name: str, server: ToolServer, lock: ToolLock) -> ToolServer:
    found = packages_of(server)
    if found is None:
        return server
    kind, packages = found
    pins = lock.pins_of(name, kind, packages)
    locked = packages.model_copy(update={"locked": digest_of(pins) if pins else ""})
    return server.model_copy(update={kind: locked})


def problems_of(config: RunConfig, run_file: Path) -> Iterator[ConfigError]:
    """Servers whose packages the lock file does not pin."""
    lock = ToolLock.beside(run_file)
    hint = f"`agentrl tools lock {run_file}` pins what the run file names."
    for name, server in config.tools.items() if config.environments else ():
        found = packages_of(server)
        if found is None or lock.pins_of(name, *found):
            continue
        kind, packages = found
        wanted = " ".join(packages.packages)
        before = lock.servers.get(name, {}).get("packages", [])
        if lock.problem:
            why = f"the lock file {lock.path} pins nothing: {lock.problem}"
        elif before and before != list(packages.packages):
            why = f"the run file names {wanted}, but {lock.path.name} pins {' '.join(map(str, before))}"
        else:
            why = f"{lock.path.name} does not pin {wanted}{' with these settings' if before else ''}"
        yield ConfigError(f"tools.{name}.{kind}: {why}.", hint=hint)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as broken:
        raise DiskError(f"{path} cannot be written: {broken.strerror}.") from broken
