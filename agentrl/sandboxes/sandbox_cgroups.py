"""The cgroups of sandboxes: they limit processes and memory of a whole sandbox, which rlimits cannot.

Invariants:
- The sandbox enters its cgroups before its first process of another program starts.
- On a host without usable cgroups only the limits of each process remain, and the status of the server says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.tool_sandbox import Sandbox
from agentrl.host import cgroups, procfs

_OWN_PROCESSES = 2
"""Processes of bubblewrap itself."""
_ENTER = 'for group in $0; do echo $$ > "$group/cgroup.procs" || exit 125; done; exec "$@"'
_PLACES = ".sandboxes"
"""Ends the name of the v1 cgroups of a run's sandboxes; in v2 they are below the cgroup of their unit."""
_OWN = "unit"
"""In v2, the cgroup of the unit's own processes."""
_LIMITS = {"memory": frozenset({"memory.max", "memory.limit_in_bytes"}), "number": frozenset({"pids.max"})}
_CURE = "start the run under `systemd-run --user --scope -p Delegate=yes`"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class SandboxCgroup:
    paths: tuple[Path, ...]

    def entered(self, command: Sequence[str]) -> tuple[str, ...]:
        """A command that enters the cgroups and becomes `command`."""
        return ("/bin/sh", "-c", _ENTER, " ".join(map(str, self.paths)), *command)

    @property
    def exceeded_memory(self) -> bool:
        """Whether the kernel killed a process of the sandbox because of its memory limit."""
        return any(cgroups.Group(memory=path).oom_kills() for path in self.paths)

    async def remove(self) -> None:
        """Wait until the kernel ended what was inside."""
        while not self.removed():
            await asyncio.sleep(0.005)

    def removed(self) -> bool:
        """Remove the cgroups; False while a process is in one."""
        for path in self.paths:
            with contextlib.suppress(OSError):
                (path / "cgroup.kill").write_text("1")
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def make(sandbox: Sandbox) -> SandboxCgroup | None:
    """Create the cgroups of a new sandbox; None if this host does not allow it."""
    places = usable_places()
    if not places:
        return None
    name = f"sandbox-{os.getpid()}-{next(_numbers)}"
    made = []
    try:
        for place, limits in places:
            path = place / name
            path.mkdir(parents=True, exist_ok=True)
            made.append(path)
            for file, value in _values(sandbox):
                if file in limits:
                    (path / file).write_text(value)
    except OSError:
        SandboxCgroup(tuple(made)).removed()
        return None
    return SandboxCgroup(tuple(made))


def leave() -> None:
    """Remove the places of this unit if they are empty; the next sandbox makes them again."""
    for place, _ in usable_places():
        if place.parent.name.endswith(_PLACES):
            with contextlib.suppress(OSError):
                place.rmdir()
                place.parent.rmdir()


def unlimited(places: Sequence[tuple[Path, frozenset[str]]]) -> str:
    """Which limits do not hold for a sandbox as a whole, as a clause with what to do; empty if all of them do."""
    limits = frozenset[str]().union(*(files for _, files in places))
    missing = [name for name, files in _LIMITS.items() if not limits & files]
    return f"no cgroup limits the {' and '.join(missing)} of all its processes; {_CURE}" if missing else ""


def unlimited_on_host() -> str:
    """The same for a toolbox that starts here as a unit. Changes nothing."""
    unified = cgroups.place_of("")
    found = []
    for controller in ("memory", "pids"):
        place = cgroups.place_of(controller)
        offered = procfs.read_bytes(f"{unified}/cgroup.controllers").decode().split()
        if place is None and unified is not None and controller in offered:
            place = unified
        if place is not None and os.access(place, os.W_OK):
            found.append((place, frozenset([f"{controller}.max"])))
    return unlimited(found)


@functools.cache
def usable_places() -> tuple[tuple[Path, frozenset[str]], ...]:
    """Where cgroups of sandboxes can be created, and the files there that limit them."""
    run = os.environ.get(procfs.MARK_RUN.decode(), "")
    incarnation = os.environ.get(procfs.MARK_INCARNATION.decode(), "")
    if not run or not incarnation:
        return ()  # After a crash no scan would remove these cgroups.
    place = cgroups.place_of("")
    # Only the cgroup of a unit is changed, and never another one, such as that of a login.
    of_a_unit = place is not None and place.parent.name.startswith(cgroups.run_prefix(run))
    if place is not None and of_a_unit and (limits := _v2_limits(place)):
        return ((place, limits),)
    found = []
    for controller, file in (("pids", "pids.max"), ("memory", "memory.limit_in_bytes")):
        place = cgroups.place_of(controller)
        if place is not None and os.access(place, os.W_OK):
            own = place / f"{cgroups.run_prefix(run)}{_PLACES}" / incarnation
            found.append((own, frozenset([file])))
    return tuple(found)


def _v2_limits(place: Path) -> frozenset[str]:
    """Let the unit's cgroup limit the cgroups below it. It must then have no process itself, so this process moves
    below it."""
    offered = procfs.read_bytes(f"{place}/cgroup.controllers").decode().split()
    wanted = [name for name in ("memory", "pids") if name in offered]
    if not wanted:
        return frozenset()
    try:
        (place / _OWN).mkdir(exist_ok=True)
        for pid in (place / "cgroup.procs").read_text().split():
            (place / _OWN / "cgroup.procs").write_text(pid)
        (place / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    except OSError:
        return frozenset()
    return frozenset(f"{name}.max" for name in wanted)


def _values(sandbox: Sandbox) -> tuple[tuple[str, str], ...]:
    processes = str(sandbox.processes + _OWN_PROCESSES)
    memory = str(sandbox.memory)
    return ("pids.max", processes), ("memory.max", memory), ("memory.limit_in_bytes", memory)
