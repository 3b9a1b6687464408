"""The unit of a local process is found by its cgroup, its ancestors and their environments."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentrl.control.local_peers import ENDED, NO_UNIT, UNNAMED_UNIT, owner_of
from agentrl.host import cgroups, procfs
from tests.waiting import eventually

RUN = uuid.uuid4().hex
UNIT = {"AGENTRL_RUN": RUN, "AGENTRL_INCARNATION": "tools-0.3"}
AGENT = {"AGENTRL_RUN": RUN}


@contextmanager
def last_of(script: str, marks: dict[str, str]) -> Iterator[int]:
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
        ({"AGENTRL_RUN": "another"}, "echo $$; exec sleep 1000", NO_UNIT),
        ({}, "echo $$; exec sleep 1000", NO_UNIT),
    ],
)
def test_owner_is_the_unit_whose_environment_an_ancestor_has(
    marks: dict[str, str], script: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process starts the tree, so it must not count as the coordinator.
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with last_of(script, marks) as pid:
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
        with last_of(script, {"AGENTRL_RUN": RUN, "AGENTRL_INCARNATION": "web-0.1"}) as pid:
            assert owner_of(pid, RUN) == "web-1.2"
    finally:
        group.remove()
        found.close()


def test_programs_that_the_coordinator_starts_act_for_its_operator() -> None:
    with last_of("echo $$; exec sleep 1000", {}) as pid:
        assert owner_of(pid, RUN) == NO_UNIT
    with last_of("echo $$; exec sleep 1000", AGENT) as pid:
        # Such as an orphan of a host agent that the coordinator started.
        eventually(lambda: owner_of(pid, RUN) == UNNAMED_UNIT)


def test_hidden_ancestor_is_not_one_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hosts that hide the processes of other users."""
    real, me = procfs.read_stat, os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: 0)
    monkeypatch.setattr(procfs, "read_stat", lambda pid: None if pid == me else real(pid))
    with last_of("echo $$; exec sleep 1000", {}) as pid:
        assert owner_of(pid, RUN) == NO_UNIT


def test_process_that_has_ended_has_no_rights() -> None:
    with last_of("echo $$; exec sleep 1000", {}) as pid:
        pass
    assert owner_of(pid, RUN) == ENDED
    assert owner_of(0, RUN) == ENDED
