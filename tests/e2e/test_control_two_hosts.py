"""Two hosts and a network between them that breaks and returns.

Each host agent lives in a network namespace of its own. Only this test sees the
processes of both, so it can count the processes of a unit on both sides of a broken link.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentrl.config.this_host import default_name
from agentrl.errors import ExitCode
from agentrl.protocol.rows import HostRow, OperationRow, OperationState, UnitRow, UnitState
from tests.e2e.networks import Network
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import PATIENCE_S, eventually

HERE, THERE = default_name(), "b"
HOSTS = ("here", "there")
ADDRESS = "tcp://10.99.0.1:7400"
LINK_DOWN_S = 6.0
"""Three leases of a host at the pace of these tests."""
FAR = ("far-0", "far-1", "mute-0")
"""Units that may only run there, and whose writes are not fenced."""


class TwoHosts:
    """A run whose coordinator is on one side of the link, and a second host agent on the other."""

    def __init__(self, run: Run, link: Network) -> None:
        self.run, self.link = run, link
        self._folder = run.file.parent
        self._log = (self._folder / "agent-b.log").open("w")
        self.agent: subprocess.Popen[bytes] | None = None
        self.command: list[str] = []
        """What `hosts add` said to run there; empty for what a person knows by heart."""

    def up(self) -> None:
        run = self.run
        run.write()
        command = [*self.link.inside(HOSTS[0]), PYTHON, "-m", "agentrl", "up", str(run.file), "--no-wait", "--json"]
        done = subprocess.run(command, env=run.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def start_agent(self) -> None:
        """Starts it like an operator of the other host, with paths relative to this directory."""
        where = ["--state-dir", "b/state", "--run-dir", "b/run", "--run", self.run.uuid()]
        whom = ["--coordinator", ADDRESS, "--key", "b.key"]
        words = self.command or ["daemon", "host", "--name", THERE, *where, *whom]
        self.agent = subprocess.Popen(
            [*self.link.inside(HOSTS[1]), PYTHON, "-m", "agentrl", *words],
            cwd=self._folder,
            env=self.run.environ,
            stdout=self._log,
            stderr=self._log,
        )

    def run_agent_elsewhere(self, directory: str, key: str, *more: str) -> subprocess.CompletedProcess[str]:
        """An agent of a further machine, until it ends."""
        where = ["--state-dir", f"{directory}/state", "--run-dir", f"{directory}/run", "--run", self.run.uuid()]
        command = [*self.link.inside(HOSTS[1]), PYTHON, "-m", "agentrl", "daemon", "host", *where, *more]
        return subprocess.run(
            [*command, "--coordinator", ADDRESS, "--key", key],
            cwd=self._folder,
            env=self.run.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def close(self) -> None:
        self._log.close()
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait(PATIENCE_S)
        if self.command:
            shutil.rmtree(self.command[self.command.index("--state-dir") + 1])

    # ---- state ----

    def wait_host(self, name: str, state: str) -> None:
        def is_so() -> bool:
            row = self.run.rows().get(f"host/{name}")
            assert isinstance(row, HostRow), f"no host {name}"
            assert row.state == state, f"{name} is {row.state}"
            return True

        eventually(is_so, what=f"host {name} to be {state}")

    def all_ready(self) -> dict[str, UnitRow]:
        def ready() -> dict[str, UnitRow]:
            units = self.run.units()
            assert all(row.state == UnitState.READY for row in units.values()), _said(units)
            return units

        return eventually(ready, what="all units to be ready")

    def alerts(self) -> dict[str, str]:
        return {alert["id"]: alert["state"] for alert in self.run.cli("alerts", "list")}


def _said(units: dict[str, UnitRow]) -> dict[str, str]:
    return {name: f"{row.state} on {row.host}: {row.reason}" for name, row in units.items()}


def _network(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    link = Network(name, HOSTS)
    try:
        link.lay()
        for run in running(tmp_path_factory.mktemp("net"), name):
            hosts = TwoHosts(run, link)
            try:
                _bring_up(hosts)
                yield hosts
            finally:
                link.mend(HOSTS[1])
                run.close()
                hosts.close()
    finally:
        link.remove()


def _bring_up(hosts: TwoHosts) -> None:
    run = hosts.run
    run.config["coordinator"] = {"listen": ADDRESS}
    run.sidecar("near", ["sleep", "1000"], count=8, hosts=[HERE])
    run.unit("far", "step_loop", "--every", "0.05", count=2, hosts=[THERE])
    run.sidecar("mute", ["sleep", "1000"], hosts=[THERE])
    run.unit("fenced", "step_loop", "--every", "0.05", fenced=True, count=0)
    hosts.up()
    run.cli("keys", "new", THERE, "--permission", "host", "--out", str(run.file.parent / "b.key"))
    run.wait_state("far-0", "pending")
    eventually(lambda: f"{THERE}: has not registered" in run.unit_row("far-0").reason, what="why it waits")
    hosts.start_agent()
    hosts.all_ready()
    run.cli("scale", "fenced", "1")  # the host with fewer units


def test_units_on_the_other_host_are_supervised_like_local_ones(hosts: TwoHosts) -> None:
    run, units = hosts.run, hosts.all_ready()
    assert {unit: units[unit].host for unit in (*FAR, "fenced-0")} == dict.fromkeys((*FAR, "fenced-0"), THERE)
    assert _network(units["near-0"].pid) != _network(units["far-0"].pid)
    environ = psutil.Process(units["far-0"].pid).environ()
    assert environ["AGENTRL_COORDINATOR"] == ADDRESS
    assert Path(environ["AGENTRL_KEY"]) == run.file.parent / "b/state/hosts/b/units.key"
    keys = {row["name"]: (row["permission"], row.get("of", "")) for row in run.cli("keys", "list")}
    assert keys == {THERE: ("host", ""), f"{THERE}.units": ("unit", THERE)}
    eventually(lambda: run.unit_row("far-0").progress > units["far-0"].progress + 5, what="its progress")

    run.kill(units["mute-0"].pid)
    last_exit = run.wait_incarnation("mute-0", above=1).last_exit
    assert last_exit is not None
    assert last_exit.signal == signal.SIGKILL
    run.cli("restart", "far-1")
    assert run.unit_row("far-1").incarnation == units["far-1"].incarnation + 1
    assert "far-1" in run.raw("logs", "far-1", "--previous").stdout


def test_second_machine_with_the_name_of_a_host_is_refused(hosts: TwoHosts) -> None:
    run, before = hosts.run, hosts.all_ready()
    run.cli("keys", "new", "c", "--permission", "host", "--out", str(run.file.parent / "c.key"))
    for name, sentence in (
        (THERE, f"Another machine has joined the run as host {THERE}."),
        (HERE, f"Host {HERE} is the machine of the coordinator."),
    ):
        ended = hosts.run_agent_elsewhere(f"c-{name}", "c.key", "--name", name)
        assert ended.returncode == ExitCode.CONFLICT, ended.stderr
        assert sentence in ended.stderr
    ended = hosts.run_agent_elsewhere("d", "b.key", "--name", "d")
    assert ended.returncode == ExitCode.CONFLICT, ended.stderr
    assert f"The key {THERE} belongs to host {THERE}, not to d." in ended.stderr
    after = hosts.all_ready()
    assert {unit: row.incarnation for unit, row in after.items()} == {u: row.incarnation for u, row in before.items()}
    assert {key for key in run.rows() if key.startswith("host/")} == {f"host/{HERE}", f"host/{THERE}"}


@pytest.mark.parametrize("coordinator_dies", [False, True], ids=["the link alone", "the coordinator as well"])
def test_broken_link_makes_units_lost_and_starts_no_unit_twice(
    hosts: TwoHosts, coordinator_dies: bool, request: pytest.FixtureRequest
) -> None:
    run = hosts.run
    run.cli("restart", "fenced-0")  # the host with fewer units
    before = hosts.all_ready()
    assert before["fenced-0"].host == THERE
    ghost = f"fenced-0.{before['fenced-0'].incarnation}"
    cut_at = time.monotonic()
    hosts.link.cut(HOSTS[1])
    request.addfinalizer(lambda: hosts.link.mend(HOSTS[1]))
    if coordinator_dies:
        run.kill(run.coordinator_pid())
    hosts.wait_host(THERE, "lost")
    for unit in FAR:
        run.wait_state(unit, "lost")
    replaced = run.wait_incarnation("fenced-0", above=before["fenced-0"].incarnation)
    assert replaced.host == HERE
    assert run.lives_of("fenced-0") == {ghost, f"fenced-0.{replaced.incarnation}"}
    eventually(lambda: hosts.alerts().get(f"host-lost:{THERE}") == "firing")
    run.kill(before["far-1"].pid)  # ends on the other side of the broken link
    eventually(lambda: time.monotonic() - cut_at > LINK_DOWN_S, within_s=LINK_DOWN_S + 30)
    assert {run.unit_row(unit).state for unit in FAR} == {UnitState.LOST}
    assert run.lives_of("far-1") == set()

    hosts.link.mend(HOSTS[1])
    hosts.wait_host(THERE, "up")
    dead = run.wait_incarnation("far-1", above=before["far-1"].incarnation)
    assert dead.last_exit is not None
    assert dead.last_exit.signal == signal.SIGKILL
    after = hosts.all_ready()
    for unit in set(before) - {"far-1", "fenced-0"}:
        assert (after[unit].incarnation, after[unit].pid) == (before[unit].incarnation, before[unit].pid), unit
    progress = after["far-0"].progress
    eventually(lambda: run.unit_row("far-0").progress > progress + 5, what="its progress again")
    assert after["fenced-0"].incarnation == replaced.incarnation
    lives = {unit: {f"{unit}.{row.incarnation}"} for unit, row in after.items()}
    eventually(lambda: {unit: run.lives_of(unit) for unit in lives} == lives, what="one incarnation of each unit")


def test_drained_host_stays_empty_until_the_drain_is_cancelled(hosts: TwoHosts) -> None:
    run, before = hosts.run, hosts.all_ready()
    run.cli("drain", "--host", THERE, "--yes")
    for unit in FAR:
        row = run.wait_state(unit, "pending")
        assert f"{THERE}: draining" in row.reason
        assert run.lives_of(unit) == set()
    assert run.wait_state("fenced-0", "ready").host == HERE
    run.cli("drain", "--host", THERE, "--cancel")
    after = hosts.all_ready()
    assert {unit: after[unit].incarnation for unit in FAR} == {u: before[u].incarnation + 1 for u in FAR}


def test_removed_host_leaves_with_nothing_left_on_it_and_joins_again_with_another_key(hosts: TwoHosts) -> None:
    run, before = hosts.run, hosts.all_ready()
    code, refused = run.cli("hosts", "remove", HERE, "--yes", check=False)
    assert code == ExitCode.REFUSED
    assert f"Host {HERE} has the data of this run." in str(refused)
    preview = run.cli("hosts", "remove", THERE, "--dry-run")["effect"]
    assert set(FAR) <= set(preview["drains"])
    assert preview["changes"] == [f"host {THERE} leaves the run"]
    assert any("waits at first" in note and "far-0" in note for note in preview["notes"])
    removal = run.cli("hosts", "remove", THERE, "--no-wait", "--yes")["operation"]
    run.kill(run.coordinator_pid())
    assert hosts.agent is not None
    assert hosts.agent.wait(PATIENCE_S) == 0

    def has_ended() -> OperationRow:
        row = run.rows()[f"op/{removal}"]
        assert isinstance(row, OperationRow)
        assert row.state is OperationState.SUCCEEDED, f"{row.state}: {row.reason}"
        return row

    lines = eventually(has_ended, what="the end of the removal").lines
    assert "processes examined" in lines[0]
    assert lines[1] == f"The key {THERE} is revoked."
    assert f"host/{THERE}" not in run.rows()
    assert {unit: run.lives_of(unit) for unit in FAR} == {unit: set() for unit in FAR}
    assert next(row for row in run.cli("keys", "list") if row["name"] == THERE)["revoked_at"]
    made = run.cli("hosts", "add", THERE, "--out", str(run.file.parent / "again.key"))
    assert made["key"] == f"{THERE}-2"  # the name of a revoked key stays taken
    program, *hosts.command = shlex.split(made["command"])
    assert program == "agentrl"
    hosts.start_agent()
    after = hosts.all_ready()
    assert {unit: after[unit].incarnation for unit in FAR} == {u: before[u].incarnation + 1 for u in FAR}


def test_host_that_is_gone_for_good_is_forgotten_by_a_command(hosts: TwoHosts) -> None:
    run, before = hosts.run, hosts.all_ready()
    code, refused = run.cli("hosts", "forget", THERE, "--yes", check=False)
    assert code == ExitCode.REFUSED
    assert "is connected" in str(refused)
    hosts.link.cut(HOSTS[1])
    assert hosts.agent is not None
    hosts.agent.kill()
    hosts.agent.wait(PATIENCE_S)
    for unit in FAR:
        os.kill(before[unit].pid, signal.SIGKILL)
    for unit in FAR:
        run.wait_state(unit, "lost")
    hosts.wait_host(THERE, "lost")
    preview = run.cli("hosts", "forget", THERE, "--dry-run")["effect"]
    assert preview["changes"] == [f"host {THERE} is forgotten"]
    assert all(f"{unit}.{before[unit].incarnation}" in preview["loses"][0] for unit in FAR)
    run.cli("hosts", "forget", THERE, "--yes")
    eventually(lambda: f"host/{THERE}" not in run.rows())
    assert all(THERE in run.wait_state(unit, "pending").reason for unit in FAR)
    hosts.link.mend(HOSTS[1])
    hosts.start_agent()  # under the name that is free again
    after = hosts.all_ready()
    assert {unit: run.lives_of(unit) for unit in FAR} == {u: {f"{u}.{after[u].incarnation}"} for u in FAR}


def test_down_reports_that_both_hosts_are_empty(hosts: TwoHosts) -> None:
    run = hosts.run
    down = run.cli("down", "--yes")
    assert down["proven"]
    lines = " ".join(down["lines"])
    assert f" on {HERE} belongs to it" in lines
    assert f"{THERE}: " in lines
    assert hosts.agent is not None
    assert hosts.agent.wait(PATIENCE_S) == 0
    assert not run.processes()
