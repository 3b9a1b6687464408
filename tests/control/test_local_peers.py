"""The unit of a local process is found by its cgroup, its ancestors and their environments."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from agentrl.control.local_peers import (
    ALERT_PROGRAM,
    ENDED,
    NO_UNIT,
    OTHER_RUN,
    OUTSIDE,
    UNNAMED_UNIT,
    LocalPeers,
    owner_of,
)
from agentrl.host import cgroups, procfs
from agentrl.protocol.messages import Permission, UnitHello
from agentrl.supervision.unit_slots import RunState, State
from agentrl.transport.hub import Peer
from tests.waiting import eventually

RUN = uuid.uuid4().hex
UNIT = {"AGENTRL_RUN": RUN, "AGENTRL_INCARNATION": "tools-0.3"}
AGENT = {"AGENTRL_RUN": RUN}
THIRD = uuid.uuid4().hex
OTHER = {"AGENTRL_RUN": "another", "AGENTRL_INCARNATION": "tools-0.3"}


@contextmanager
def last_process_of(script: str, marks: dict[str, str]) -> Iterator[int]:
    """The process whose pid the script prints, in a tree whose root has the marks."""
    environ = procfs.without_marks(os.environ) | marks
    with subprocess.Popen(
        ["sh", "-c", script], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as root:
        assert root.stdout is not None
        pid = int(root.stdout.readline())
        try:
            yield pid
        finally:
            for each in (pid, root.pid):
                procfs.kill_exactly(each, stat.start_ticks) if (stat := procfs.read_stat(each)) else None


@pytest.mark.parametrize(
    ("marks", "script", "owner"),
    [
        (UNIT, "echo $$; exec sleep 1000", "tools-0.3"),
        (UNIT, "env -i sh -c 'echo $$; exec sleep 1000'; true", "tools-0.3"),
        (UNIT, "env -i setsid -w sh -c 'env -i sh -c \"echo \\$\\$; sleep 1000; true\"; true'; true", "tools-0.3"),
        (UNIT, "AGENTRL_INCARNATION=notebook-0.1 sh -c 'echo $$; exec sleep 1000'; true", "tools-0.3"),
        (AGENT, "env -i sh -c 'echo $$; exec sleep 1000'; true", UNNAMED_UNIT),
        (OTHER, "echo $$; exec sleep 1000", OTHER_RUN),
        (OTHER, "env -i sh -c 'echo $$; exec sleep 1000'; true", OTHER_RUN),
        (OTHER, f"env AGENTRL_RUN={RUN} AGENTRL_INCARNATION=web-0.1 sh -c 'echo $$; sleep 1000; true'", OTHER_RUN),
        ({"AGENTRL_MARK": procfs.mark_of("another")}, "echo $$; exec sleep 1000", OTHER_RUN),
        (UNIT, "AGENTRL_RUN=another AGENTRL_INCARNATION=a-0.1 sh -c 'echo $$; exec sleep 1000'; true", "tools-0.3"),
        ({}, "echo $$; exec sleep 1000", NO_UNIT),
    ],
)
def test_owner_is_the_unit_whose_environment_an_ancestor_has(
    marks: dict[str, str], script: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process starts the tree, so it must not count as the coordinator.
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with last_process_of(script, marks) as pid:
        eventually(
            lambda: owner_of(pid, RUN) == owner, what="its environment, which is empty for a moment at the start"
        )


def test_owner_is_the_unit_of_the_cgroup_whatever_the_environment_says() -> None:
    found = cgroups.detect(RUN, "here")
    if found.tree_base is None:
        pytest.skip("no cgroup may be written here")
    group = found.make("web-1.2")
    assert group.tree is not None
    try:
        script = f"echo $$ > {group.tree}/cgroup.procs; echo $$; exec sleep 1000"
        with last_process_of(script, {"AGENTRL_RUN": RUN, "AGENTRL_INCARNATION": "web-0.1"}) as pid:
            assert owner_of(pid, RUN) == "web-1.2"
        # A process of another run gives itself the marks of this one, and leaves its ancestors.
        moved = f"echo $$ > {group.tree}/cgroup.procs; echo $$; exec setsid sleep 1000"
        forged = f"sh -c '{moved}' &"
        with last_process_of(forged, {"AGENTRL_RUN": THIRD, "AGENTRL_INCARNATION": "web-0.1"}) as pid:
            assert owner_of(pid, THIRD) == OTHER_RUN
    finally:
        group.remove()
        found.close()


def test_process_of_another_run_registers_as_no_unit_and_commands_nothing() -> None:
    peers = LocalPeers(RUN, State(RunState()))
    with last_process_of("echo $$; exec sleep 1000", OTHER) as pid:
        peer = connection(pid, os.getuid())
        eventually(lambda: owner_of(pid, RUN) == OTHER_RUN, what="its environment")
        hello = cast(UnitHello, SimpleNamespace(unit="web-0", incarnation=1))
        refused = peers.refusal_of_unit(peer, hello)
        assert refused is not None
        assert refused.final
        assert peers.permission(peer) is None
        assert not peers.may_read(pid, os.getuid())


def test_coordinator_inside_a_unit_of_another_run_still_recognises_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator may run in the terminal of a sidecar. Marks that it shares with a process are no evidence."""
    real = procfs.marks
    monkeypatch.setattr(
        procfs, "marks", lambda pid: {procfs.MARK_RUN: b"another"} if pid == os.getppid() else real(pid)
    )
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with last_process_of("echo $$; exec sleep 1000", {}) as pid:
        assert owner_of(pid, RUN) == OTHER_RUN
        child = subprocess.Popen(["sleep", "1000"])
        try:
            monkeypatch.setattr(os, "getpid", lambda: child.pid)
            assert owner_of(pid, RUN) == NO_UNIT
        finally:
            child.kill()
            child.wait()


def test_programs_that_the_coordinator_starts_act_for_its_operator() -> None:
    with last_process_of("echo $$; exec sleep 1000", {}) as pid:
        assert owner_of(pid, RUN) == NO_UNIT
    with last_process_of("echo $$; exec sleep 1000", AGENT) as pid:
        # An example is an orphan of a host agent that the coordinator started.
        eventually(lambda: owner_of(pid, RUN) == UNNAMED_UNIT)


def test_hidden_ancestor_is_not_taken_for_an_ended_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hosts that hide the processes of other users."""
    real, me = procfs.read_stat, os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: 0)
    monkeypatch.setattr(procfs, "read_stat", lambda pid: None if pid == me else real(pid))
    with last_process_of("echo $$; exec sleep 1000", {}) as pid:
        assert owner_of(pid, RUN) == NO_UNIT


def test_process_that_has_ended_has_no_rights() -> None:
    with last_process_of("echo $$; exec sleep 1000", {}) as pid:
        pass
    assert owner_of(pid, RUN) == ENDED
    assert owner_of(0, RUN) == ENDED


def connection(pid: int, uid: int) -> Peer:
    class Connection(SimpleNamespace):
        __hash__ = object.__hash__

    return cast(Peer, Connection(pid=pid, uid=uid))


def test_program_of_an_alert_may_do_what_the_run_file_permits() -> None:
    peers = LocalPeers(RUN, State(RunState()))
    with last_process_of("sh -c 'echo $$; exec sleep 1000'; true", AGENT) as pid:
        root = procfs.read_stat(pid)
        assert root is not None
        peers.alert_programs = {root.ppid}
        peer = connection(pid, 0)
        assert (peers.owner(peer), peers.permission(peer)) == (ALERT_PROGRAM, None)
        peers.alert_permission = Permission.VIEWER
        assert peers.permission(peer) is Permission.VIEWER
        # A process that the program leaves behind is not taken for a person.
        assert owner_of(pid, RUN) != NO_UNIT


def test_process_of_another_pid_namespace_is_named_and_gets_advice() -> None:
    peers = LocalPeers(RUN, State(RunState()))
    peer = connection(0, 1000)
    assert (peers.owner(peer), peers.permission(peer)) == (OUTSIDE, None)
    refused = peers.refusal_of_client(peer)
    assert refused.message == (
        "A process of the user 1000 may not ask or command anything: it is a process outside of the coordinator's pid "
        "namespace."
    )
    assert "docker exec" in refused.hint
    assert "agentrl keys new" in refused.hint
    assert peers.owner(connection(0, -1)) == ENDED
