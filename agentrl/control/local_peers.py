"""Finds the unit or person that a local connection comes from, and its permission.

The local socket is open to every process of the operator's user, and therefore to all programs that units start: tool
servers, and code that a model wrote. The kernel names the process of a connection; its cgroup, its ancestors and their
environments name the unit.

Invariants:
- A process in the tree of a unit counts as that unit, whatever it claims: it cannot register as another unit or execute
  commands. Only processes of a sidecar, and programs that alerts started, may do what the run file permits them.
- A process of another run does not count as a person either: it cannot register as a unit or execute commands.
- A connection whose process has ended, or that the kernel does not name here, may do nothing.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from typing import NamedTuple

from agentrl.errors import ExitCode
from agentrl.host import cgroups, procfs
from agentrl.protocol.messages import Permission, Refused, UnitHello
from agentrl.protocol.specs import Role, incarnation_name, split_incarnation
from agentrl.supervision.unit_slots import State
from agentrl.transport.hub import Peer

NO_UNIT = ""
ENDED = "a process that has ended"
ALERT_PROGRAM = "a program that an alert started"
OUTSIDE = "a process outside of the coordinator's pid namespace"
UNNAMED_UNIT = "a process that a unit started"
"""A process that belongs to the run but to no known unit, because it left its cgroup and cleared its environment."""
OTHER_RUN = "a process of another run"
_FROM_OUTSIDE = (
    "The coordinator runs in a container: run the command there (`docker exec CONTAINER agentrl ...`), or connect by "
    "`coordinator.listen` with a key (`agentrl keys new`)."
)

_REMEMBERED = 1000
_CHANGES = 5
"""How many ancestors may end while they are being read."""


class LocalPeers:
    def __init__(self, run: str, state: State) -> None:
        self.alert_programs: Collection[int] = ()
        """The pids of running commands that alerts started."""
        self.alert_permission: Permission | None = None
        """The permission of these commands."""
        self._run = run
        self._state = state
        self._owners: dict[Peer, str] = {}
        self._processes: dict[tuple[int, int], str] = {}
        """Owners by pid and start time, because a process may have thousands of connections."""

    def gone(self, peer: Peer) -> None:
        self._owners.pop(peer, None)

    def owner(self, peer: Peer) -> str:
        """The incarnation that a local connection comes from; NO_UNIT for a person's. Read once: neither changes."""
        owner = self._owners.get(peer)
        if owner is None:
            owner = self._owners[peer] = self._owner_of_process(peer.pid, peer.uid)
        return owner

    def _owner_of_process(self, pid: int, uid: int) -> str:
        if pid == 0 and uid >= 0:
            return OUTSIDE
        stat = procfs.read_stat(pid) if pid else None
        if stat is None:
            return ENDED
        known = (pid, stat.start_ticks)
        if known not in self._processes:
            if len(self._processes) >= _REMEMBERED:
                self._processes.clear()
            self._processes[known] = owner_of(pid, self._run, self.alert_programs)
        return self._processes[known]

    def permission(self, peer: Peer) -> Permission | None:
        """The permission of a local connection; None if it has none."""
        return self._permission(self.owner(peer))

    def may_read(self, pid: int, uid: int) -> bool:
        """Whether a local process may follow the feed and the metrics."""
        return self._permission(self._owner_of_process(pid, uid)) is not None

    def _permission(self, owner: str) -> Permission | None:
        if owner == NO_UNIT:
            return Permission.ADMIN
        if owner == ALERT_PROGRAM:
            return self.alert_permission
        if owner in (ENDED, OUTSIDE, UNNAMED_UNIT, OTHER_RUN):
            return None
        slot = self._state.slots.get(split_incarnation(owner)[0])
        if slot is None or slot.spec is None or slot.spec.role is not Role.SIDECAR:
            return None
        return Permission(slot.spec.permission) if slot.spec.permission else None

    def who(self, peer: Peer, claimed: str) -> str:
        """The name in the audit: the user that the kernel knows, or the unit."""
        owner = self.owner(peer)
        if owner != NO_UNIT:
            return owner
        try:
            user = pwd.getpwuid(peer.uid).pw_name
        except KeyError:
            user = str(peer.uid)
        return f"{user}@{claimed.rpartition('@')[2] or 'unknown'}"

    def refusal_of_unit(self, peer: Peer, hello: UnitHello) -> Refused | None:
        """The refusal of a local connection that cannot be the unit that it claims to be; None if it can."""
        owner, claimed = self.owner(peer), incarnation_name(hello.unit, hello.incarnation)
        if owner in (NO_UNIT, claimed):
            # Without cgroups the environment of a unit may not be readable. Its token is proof enough.
            return None
        return Refused(ExitCode.REFUSED, f"Process {peer.pid} is {owner}, not {claimed}.", final=True)

    def refusal_of_client(self, peer: Peer) -> Refused:
        owner = self.owner(peer)
        if owner == OUTSIDE:
            sentence = f"A process of the user {peer.uid} may not ask or command anything: it is {owner}."
            return Refused(ExitCode.KEY_REFUSED, sentence, _FROM_OUTSIDE)
        sentence = f"Process {peer.pid} may not ask or command anything: it is {owner}."
        hint = "Only people command a run, and sidecars and programs of alerts with `permission`."
        return Refused(ExitCode.KEY_REFUSED, sentence, hint)


def owner_of(pid: int, run: str, alert_programs: Collection[int] = ()) -> str:
    """The incarnation in whose tree a process of this host is."""
    for _ in range(_CHANGES if pid > 0 else 0):
        if (owner := _owner_by_ancestors(pid, run, alert_programs)) is not None:
            return owner
    return ENDED


def _owner_by_ancestors(pid: int, run: str, alert_programs: Collection[int]) -> str | None:
    """The owner; None if the process or one of its ancestors ended meanwhile. A cgroup is certain proof. Among the
    marks in environments the outermost counts, because a process can give its children any environment.
    """
    child, owner, around = 0, NO_UNIT, _around_this_process()
    while pid > 0 and pid != os.getpid():
        if pid in alert_programs:
            return ALERT_PROGRAM
        if incarnation := cgroups.incarnation_of(pid, run):
            return incarnation
        stat = procfs.read_stat(pid)
        if stat is None:
            # A host may hide the processes of other users, such as that of the login.
            hidden = child > 0 and (again := procfs.read_stat(child)) is not None and again.ppid == pid
            return owner if hidden else None
        marks = procfs.marks(pid) or {}
        if pid not in around.pids and _is_of_another_run(pid, marks, run, around.cgroup):
            owner = OTHER_RUN
        elif procfs.is_of_run(marks, run):
            known = UNNAMED_UNIT if owner in (NO_UNIT, OTHER_RUN) else owner
            owner = marks.get(procfs.MARK_INCARNATION, b"").decode(errors="replace") or known
        child, pid = pid, stat.ppid
    return owner


class _Around(NamedTuple):
    """The ancestors and the cgroup of the coordinator itself. It may be inside a unit of another run, so they prove
    nothing about a process."""

    pids: frozenset[int]
    cgroup: str


def _around_this_process() -> _Around:
    pids, pid = set[int](), os.getpid()
    while (stat := procfs.read_stat(pid) if pid else None) is not None:
        pids.add(pid)
        pid = stat.ppid
    return _Around(frozenset(pids), cgroups.prefix_around(os.getpid()))


def _is_of_another_run(pid: int, marks: Mapping[bytes, bytes], run: str, cgroup: str) -> bool:
    """Whether a process belongs to another run. Its cgroup is certain proof, which marks of this run cannot
    overrule."""
    if cgroups.prefix_around(pid) not in ("", cgroup, cgroups.run_prefix(run)):
        return True
    marked = bool(marks.get(procfs.MARK_RUN) or marks.get(procfs.MARK_TOOL))
    return marked and not procfs.is_of_run(marks, run)
