"""The cgroups of a host agent: one per incarnation, if the host allows them.

* The agent finds out what is possible by trying.
* Everything here may be missing; the agent then uses marks and descent.
* A cgroup is removed when its incarnation is forgotten.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.host import procfs

log = logging.getLogger(__name__)

PREFIX = "agentrl-"
_OF_A_RUN = re.compile(rf"/{PREFIX}[0-9a-f]{{8}}\.")
"""A systemd service may be called agentrl-host@demo.service. Its cgroup does not belong to a run."""


def run_prefix(run: str) -> str:
    """The prefix of the names of all cgroups of a run."""
    return f"{PREFIX}{run[:8]}"


def incarnation_of(pid: int, run: str) -> str | None:
    """The incarnation in whose cgroup a process is; None if it is in no cgroup of the run."""
    prefix = f"/{run_prefix(run)}."
    inside = next((path for path in procfs.cgroup_paths(pid) if prefix in path), None)
    return inside and inside.partition(prefix)[2].partition("/")[2].partition("/")[0]


def prefix_around(pid: int) -> str:
    """The prefix of the run, any run, in whose cgroups a process is; empty if it is in none."""
    found = next(filter(None, map(_OF_A_RUN.search, procfs.cgroup_paths(pid))), None)
    return found[0].strip("/.") if found else ""


@dataclass
class Group:
    """The cgroups of one incarnation. Both paths may be missing."""

    tree: Path | None = None
    """A v2 cgroup: lists all members, and kills them with one write."""
    memory: Path | None = None
    """A cgroup (v2 or v1) with the memory limit."""

    def paths(self) -> list[Path]:
        both = [path for path in (self.tree, self.memory) if path is not None]
        return list(dict.fromkeys(both))

    def members(self) -> list[int] | None:
        """The pids inside; None if they are unknown."""
        if self.tree is None:
            return None
        pids: list[int] = []
        try:
            for folder, _, _ in os.walk(self.tree):
                pids += [int(line) for line in (Path(folder) / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return pids if self.tree.exists() else None
        except OSError:
            return None
        return pids

    def populated(self) -> bool | None:
        """Whether a process lives inside; None if that is unknown."""
        if self.tree is None:
            return None
        events = procfs.read_bytes(f"{self.tree}/cgroup.events")
        return b"populated 1" in events if events else None

    def kill(self) -> bool:
        """SIGKILL every member at once, including those that fork at this moment."""
        if self.tree is None:
            return False
        try:
            (self.tree / "cgroup.kill").write_text("1")
        except OSError:
            return False
        return True

    def oom_kills(self) -> int:
        """How many members the kernel killed because of the memory limit."""
        if self.memory is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            for line in procfs.read_bytes(f"{self.memory}/{name}").splitlines():
                key, _, value = line.partition(b" ")
                if key == b"oom_kill":
                    return int(value)
        return 0

    def remove(self) -> None:
        for path in self.paths():
            _remove_tree(path)


@dataclass
class Cgroups:
    """The places where this agent may create cgroups. Without any, `make` returns an empty Group."""

    tree_base: Path | None = None
    memory_base: Path | None = None
    memory_v2: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def can_kill(self) -> bool:
        return self.tree_base is not None

    @property
    def can_limit_memory(self) -> bool:
        return self.memory_base is not None

    def make(self, incarnation: str, memory_max_bytes: int = 0) -> Group:
        """Create the cgroups of a new incarnation. If one cannot be created, the log says why."""
        group = Group()
        if self.tree_base is not None:
            group.tree = _made(self.tree_base / incarnation)
        if memory_max_bytes and self.memory_base is not None:
            group.memory = self._limited(self.memory_base / incarnation, memory_max_bytes)
        return group

    def _limited(self, path: Path, memory_max_bytes: int) -> Path | None:
        if _made(path) is None:
            return None
        try:
            name = "memory.max" if self.memory_v2 else "memory.limit_in_bytes"
            (path / name).write_text(str(memory_max_bytes))
            if self.memory_v2:
                # The kernel kills the whole tree: half of it would hang.
                with contextlib.suppress(OSError):
                    (path / "memory.oom.group").write_text("1")
        except OSError as failed:
            log.warning("The memory limit of %s could not be set: %s.", path.name, failed)
            if not self.memory_v2:
                _remove_tree(path)
            return None
        return path

    def close(self) -> None:
        """Remove the base cgroups if they are empty."""
        for base in {self.tree_base, self.memory_base}:
            if base is not None:
                with contextlib.suppress(OSError):
                    base.rmdir()


def detect(run: str, host: str) -> Cgroups:
    """Find out by trying: which hierarchies are mounted, where this process is in them, and where it may write."""
    cgroups = Cgroups()
    name = f"{run_prefix(run)}.{host}"
    v2, v1_memory = _mounts()
    if v2 is not None:
        base = v2 / _own_path("").lstrip("/") / name
        cgroups.tree_base = _usable_base(base, "cgroup.kill", "1", "cgroup v2", cgroups.problems)
    else:
        cgroups.problems.append("no cgroup v2 is mounted")
    if cgroups.tree_base is not None and _enable_memory_v2(cgroups.tree_base):
        cgroups.memory_base, cgroups.memory_v2 = cgroups.tree_base, True
    elif v1_memory is not None:
        base = v1_memory / _own_path("memory").lstrip("/") / name
        limit = str(64 << 20)
        cgroups.memory_base = _usable_base(base, "memory.limit_in_bytes", limit, "the memory cgroup", cgroups.problems)
    else:
        cgroups.problems.append("no memory cgroup may be written")
    return cgroups


def usable() -> bool:
    """Whether an agent that starts here now would have cgroups. Creates none."""
    v2, _ = _mounts()
    return v2 is not None and os.access(v2 / _own_path("").lstrip("/"), os.W_OK)


def place_of(controller: str) -> Path | None:
    """The cgroup of this process in the hierarchy of a v1 controller, or in v2 if the controller is empty; None if
    there is none."""
    mount = _mounts()[0] if not controller else _v1_mount(controller)
    return None if mount is None else mount / _own_path(controller, exact=True).lstrip("/")


def remove_of_run(run: str) -> None:
    """Remove the empty cgroups that agents and toolboxes of the run left, wherever they were started on this host."""
    for mount in (*_mounts(), _v1_mount("pids")):
        if mount is None:
            continue
        for folder, names, _ in os.walk(mount):
            for name in [name for name in names if name.startswith(f"{run_prefix(run)}.")]:
                _remove_tree(Path(folder) / name)
                names.remove(name)


def nothing() -> Cgroups:
    """No cgroups, for `--cgroups off`."""
    return Cgroups(problems=["cgroups are switched off"])


def of_paths(tree: str, memory: str) -> Group:
    """The cgroups in a ledger entry that still exist."""
    return Group(
        tree=Path(tree) if tree and Path(tree).is_dir() else None,
        memory=Path(memory) if memory and Path(memory).is_dir() else None,
    )


def _mounts() -> tuple[Path | None, Path | None]:
    """The mount points of cgroup v2 and of the v1 memory controller."""
    v2 = next((Path(fields[1]) for fields in _mount_table() if fields[2] == "cgroup2"), None)
    return v2, _v1_mount("memory")


def _v1_mount(controller: str) -> Path | None:
    hierarchies = (fields for fields in _mount_table() if fields[2] == "cgroup")
    return next((Path(fields[1]) for fields in hierarchies if controller in fields[3].split(",")), None)


def _mount_table() -> list[list[str]]:
    lines = procfs.read_bytes("/proc/self/mounts").decode(errors="replace").splitlines()
    return [fields for line in lines if len(fields := line.split()) >= 4]


def _own_path(controller: str, *, exact: bool = False) -> str:
    """The cgroup of this process in a hierarchy; an empty controller means v2. `exact`: even if it is below the cgroup
    of a unit."""
    for line in procfs.read_bytes("/proc/self/cgroup").decode(errors="replace").splitlines():
        number, controllers, path = line.split(":", 2)
        if (number == "0" and not controller) or (controller and controller in controllers.split(",")):
            if exact:
                return path
            # An agent that was started inside a unit must not create cgroups below the unit's own.
            return _OF_A_RUN.split(path, maxsplit=1)[0]
    return ""


def _usable_base(base: Path, file: str, value: str, what: str, problems: list[str]) -> Path | None:
    """The base if a cgroup below it accepts this value; else None, with a problem noted."""
    trial = base / "trial"
    try:
        base.mkdir(exist_ok=True)
        trial.mkdir(exist_ok=True)
        (trial / file).write_text(value)
        return base
    except OSError as failed:
        problems.append(f"{what} may not be used ({failed.strerror})")
        return None
    finally:
        with contextlib.suppress(OSError):
            trial.rmdir()


def _enable_memory_v2(base: Path) -> bool:
    if b"memory" not in procfs.read_bytes(f"{base}/cgroup.controllers").split():
        return False
    try:
        (base / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        return False
    return True


def _made(path: Path) -> Path | None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as failed:
        log.warning("No cgroup %s: %s.", path, failed)
        return None
    return path


def _remove_tree(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
