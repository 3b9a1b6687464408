"""Two hosts, and a network between them that breaks in several ways and returns.

Each host agent lives in a network namespace of its own. Only this test sees the
processes of both, so it can count the processes of a unit on both sides of a broken link.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agentrl.config.this_host import default_name
from agentrl.errors import ExitCode
from agentrl.protocol.rows import HostRow, OperationRow, OperationState, UnitRow, UnitState
from tests.e2e.hosts import TOOLS as THERE
from tests.e2e.hosts import Hosts, run_on_hosts
from tests.e2e.networks import Network
from tests.e2e.running import Run
from tests.waiting import PATIENCE_S, eventually

HERE, STRANGER = default_name(), "stranger"
LINK_DOWN_S = 12.0
"""Two leases of a host at the pace of these tests."""
FAR = ("far-0", "far-1", "mute-0")
"""Units that may run only on the host `there`, and whose writes are not fenced."""


def wait_host(run: Run, name: str, state: str) -> None:
    def is_so() -> bool:
        row = run.rows().get(f"host/{name}")
        assert isinstance(row, HostRow), f"no host {name}"
        assert row.state == state, f"{name} is {row.state}"
        return True

    eventually(is_so, what=f"host {name} to be {state}")


def all_ready(run: Run) -> dict[str, UnitRow]:
    def ready() -> dict[str, UnitRow]:
        units = run.units()
        assert all(row.state == UnitState.READY for row in units.values()), _described(units)
        return units

    return eventually(ready, what="all units to be ready")


def alerts(run: Run) -> dict[str, str]:
    return {alert["id"]: alert["state"] for alert in run.cli("alerts", "list")}


def mend(hosts: Hosts) -> None:
    """Repair the network after any of the outages."""
    hosts.network.mend(THERE)
    hosts.network.disturb(THERE)
    hosts.network.return_address(STRANGER, of=THERE)


def _described(units: dict[str, UnitRow]) -> dict[str, str]:
    return {name: f"{row.state} on {row.host}: {row.reason}" for name, row in units.items()}


def _network(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    name, folder = f"t-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("net")
    for hosts in run_on_hosts(folder, name, (THERE,), factor=0.1, spares=(STRANGER,), poor=(THERE,)):
        _bring_up(hosts)
        proposed = f"/var/tmp/agentrl/{hosts.run.uuid()}"  # by `hosts add`
        yield hosts
    shutil.rmtree(proposed, ignore_errors=True)


def _bring_up(hosts: Hosts) -> None:
    run = hosts.run
    run.sidecar("near", ["sleep", "1000"], count=8, hosts=[HERE])
    run.unit("far", "step_loop", "--every", "0.05", count=2, hosts=[THERE])
    run.sidecar("mute", ["sleep", "1000"], hosts=[THERE])
    run.unit("fenced", "step_loop", "--every", "0.05", fenced=True, count=0)
    hosts.up()
    run.wait_state("far-0", "pending")
    eventually(lambda: f"{THERE}: has not registered" in run.unit_row("far-0").reason, what="why it waits")
    hosts.join(THERE)
    all_ready(run)
    run.cli("scale", "fenced", "1")  # the host with fewer units


def test_units_on_the_other_host_are_supervised_like_local_ones(hosts: Hosts) -> None:
    run, units = hosts.run, all_ready(hosts.run)
    assert {unit: units[unit].host for unit in (*FAR, "fenced-0")} == dict.fromkeys((*FAR, "fenced-0"), THERE)
    assert _network(units["near-0"].pid) != _network(units["far-0"].pid)
    environ = psutil.Process(units["far-0"].pid).environ()
    assert environ["AGENTRL_COORDINATOR"] == hosts.coordinator
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


def test_second_machine_with_the_name_of_a_host_is_refused(hosts: Hosts) -> None:
    run, before = hosts.run, all_ready(hosts.run)
    run.cli("keys", "new", "c", "--permission", "host", "--out", str(run.file.parent / "c.key"))
    for name, sentence in (
        (THERE, f"Another machine has joined the run as host {THERE}."),
        (HERE, f"Host {HERE} is the machine of the coordinator."),
    ):
        ended = hosts.agentrl(THERE, *hosts.agent_command(name, directory=f"c-{name}", key="c.key"))
        assert ended.returncode == ExitCode.CONFLICT, ended.stderr
        assert sentence in ended.stderr
    ended = hosts.agentrl(THERE, *hosts.agent_command("d", key="b.key"))
    assert ended.returncode == ExitCode.CONFLICT, ended.stderr
    assert f"The key {THERE} belongs to host {THERE}, not to d." in ended.stderr
    run.cli("keys", "revoke", "c", "--yes")
    ended = hosts.agentrl(THERE, *hosts.agent_command("e", key="c.key"))
    assert ended.returncode == ExitCode.KEY_REFUSED, ended.stderr
    assert f"The coordinator at {hosts.coordinator} does not know this key, or it was revoked." in ended.stderr
    after = all_ready(run)
    assert {unit: row.incarnation for unit, row in after.items()} == {u: row.incarnation for u, row in before.items()}
    assert {key for key in run.rows() if key.startswith("host/")} == {f"host/{HERE}", f"host/{THERE}"}


def cut(network: Network) -> None:
    network.cut(THERE)


def lose_what_it_sends(network: Network) -> None:
    network.disturb(THERE, sent_lost=1.0)


def use_its_address_twice(network: Network) -> None:
    network.take_address(STRANGER, of=THERE)


@pytest.mark.parametrize("outage", [cut, lose_what_it_sends, use_its_address_twice])
def test_broken_link_makes_units_lost_and_starts_no_unit_twice(
    hosts: Hosts, outage: Callable[[Network], None], request: pytest.FixtureRequest
) -> None:
    run = hosts.run
    run.cli("restart", "fenced-0")  # the host with fewer units
    before = all_ready(run)
    assert before["fenced-0"].host == THERE
    ghost = f"fenced-0.{before['fenced-0'].incarnation}"
    cut_at = time.monotonic()
    outage(hosts.network)
    request.addfinalizer(lambda: mend(hosts))
    if outage is cut:
        run.kill(run.coordinator_pid())
    wait_host(run, THERE, "lost")
    for unit in FAR:
        run.wait_state(unit, "lost")
    replaced = run.wait_incarnation("fenced-0", above=before["fenced-0"].incarnation)
    assert replaced.host == HERE
    assert run.lives_of("fenced-0") == {ghost, f"fenced-0.{replaced.incarnation}"}
    eventually(lambda: alerts(run).get(f"host-lost:{THERE}") == "firing")
    run.kill(before["far-1"].pid)  # ends on the other side of the broken link
    stays_s = LINK_DOWN_S if outage is cut else 0.0
    eventually(lambda: time.monotonic() - cut_at > stays_s, within_s=LINK_DOWN_S + 30)
    assert {run.unit_row(unit).state for unit in FAR} == {UnitState.LOST}
    assert run.lives_of("far-1") == set()

    mend(hosts)
    wait_host(run, THERE, "up")
    dead = run.wait_incarnation("far-1", above=before["far-1"].incarnation)
    assert dead.last_exit is not None
    assert dead.last_exit.signal == signal.SIGKILL
    after = all_ready(run)
    for unit in set(before) - {"far-1", "fenced-0"}:
        assert (after[unit].incarnation, after[unit].pid) == (before[unit].incarnation, before[unit].pid), unit
    progress = after["far-0"].progress
    eventually(lambda: run.unit_row("far-0").progress > progress + 5, what="its progress again")
    assert after["fenced-0"].incarnation == replaced.incarnation
    lives = {unit: {f"{unit}.{row.incarnation}"} for unit, row in after.items()}
    eventually(lambda: {unit: run.lives_of(unit) for unit in lives} == lives, what="one incarnation of each unit")


def test_units_of_a_rebooted_host_start_again_and_none_counts_as_alive(hosts: Hosts) -> None:
    run, before = hosts.run, all_ready(hosts.run)
    hosts.kill(THERE)
    hosts.boot(THERE)
    hosts.join(THERE)
    for unit in FAR:
        row = run.wait_incarnation(unit, above=before[unit].incarnation)
        assert (row.incarnation, row.host) == (before[unit].incarnation + 1, THERE)
        assert row.last_exit is not None
        assert row.last_exit.unknown == "the host was booted since"
        assert row.deaths_in_window <= before[unit].deaths_in_window, "a reboot does not count against a unit"
        assert run.lives_of(unit) == {f"{unit}.{row.incarnation}"}
    after = all_ready(run)
    assert {unit: after[unit].pid for unit in after if unit.startswith("near")} == {
        unit: before[unit].pid for unit in before if unit.startswith("near")
    }


def test_drained_host_stays_empty_until_the_drain_is_cancelled(hosts: Hosts) -> None:
    run, before = hosts.run, all_ready(hosts.run)
    run.cli("drain", "--host", THERE, "--yes")
    for unit in FAR:
        row = run.wait_state(unit, "pending")
        assert f"{THERE}: draining" in row.reason
        assert run.lives_of(unit) == set()
    assert run.wait_state("fenced-0", "ready").host == HERE
    run.cli("drain", "--host", THERE, "--cancel")
    after = all_ready(run)
    assert {unit: after[unit].incarnation for unit in FAR} == {u: before[u].incarnation + 1 for u in FAR}


def test_removed_host_leaves_with_nothing_left_on_it_and_joins_again_with_another_key(hosts: Hosts) -> None:
    run, before = hosts.run, all_ready(hosts.run)
    code, refused = run.cli("hosts", "remove", HERE, "--yes", check=False)
    assert code == ExitCode.REFUSED
    assert f"Host {HERE} has the data of this run." in str(refused)
    preview = run.cli("hosts", "remove", THERE, "--dry-run")["effect"]
    assert set(FAR) <= set(preview["drains"])
    assert preview["changes"] == [f"host {THERE} leaves the run"]
    assert any("waits at first" in note and "far-0" in note for note in preview["notes"])
    removal = run.cli("hosts", "remove", THERE, "--no-wait", "--yes")["operation"]
    run.kill(run.coordinator_pid())
    assert hosts.agent(THERE).wait(PATIENCE_S) == 0

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
    program, *words = shlex.split(made["command"])
    assert program == "agentrl"
    hosts.join(THERE, words=words)
    after = all_ready(run)
    assert {unit: after[unit].incarnation for unit in FAR} == {u: before[u].incarnation + 1 for u in FAR}


def test_host_that_is_gone_for_good_is_forgotten_by_a_command(hosts: Hosts) -> None:
    run, before = hosts.run, all_ready(hosts.run)
    code, refused = run.cli("hosts", "forget", THERE, "--yes", check=False)
    assert code == ExitCode.REFUSED
    assert "is connected" in str(refused)
    hosts.network.cut(THERE)
    hosts.agent(THERE).kill()
    hosts.agent(THERE).wait(PATIENCE_S)
    for unit in FAR:
        os.kill(before[unit].pid, signal.SIGKILL)
    for unit in FAR:
        run.wait_state(unit, "lost")
    wait_host(run, THERE, "lost")
    preview = run.cli("hosts", "forget", THERE, "--dry-run")["effect"]
    assert preview["changes"] == [f"host {THERE} is forgotten"]
    assert all(f"{unit}.{before[unit].incarnation}" in preview["loses"][0] for unit in FAR)
    run.cli("hosts", "forget", THERE, "--yes")
    eventually(lambda: f"host/{THERE}" not in run.rows())
    assert all(THERE in run.wait_state(unit, "pending").reason for unit in FAR)
    hosts.network.mend(THERE)
    hosts.join(THERE)  # under the name that is free again
    after = all_ready(run)
    assert {unit: run.lives_of(unit) for unit in FAR} == {u: {f"{u}.{after[u].incarnation}"} for u in FAR}


def test_down_names_the_host_that_it_could_not_ask_and_later_proves_both(hosts: Hosts) -> None:
    run = hosts.run
    all_ready(run)
    hosts.kill(THERE)
    wait_host(run, THERE, "lost")
    code, down = run.cli("down", "--yes", check=False)
    assert (code, down["proven"]) == (ExitCode.NOT_PROVEN, False)
    lines = " ".join(down["lines"])
    assert f"NOT PROVEN: host {THERE}: The agent of host {THERE} is silent. (a host that is gone for good: " in lines
    assert f"host {HERE}" not in lines
    hosts.network.mend(THERE)
    hosts.up()
    hosts.join(THERE)
    all_ready(run)
    down = run.cli("down", "--yes")
    assert down["proven"]
    lines = " ".join(down["lines"])
    assert f" on {HERE} belongs to it" in lines
    assert f"{THERE}: " in lines
    assert hosts.agent(THERE).wait(PATIENCE_S) == 0
    assert not run.processes()
