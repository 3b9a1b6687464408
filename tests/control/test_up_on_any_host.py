"""`up` and `down` with any host name, with and without features of the kernel, with one host or a second that joins."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from agentrl.host import cgroups
from agentrl.protocol.rows import OperationState
from tests.control.run_in_process import RunInProcess
from tests.waiting import PATIENCE_S, aeventually

LONG = "n" * 60
NAMES = {
    "dotted": ("node1.cluster.example.org", "node1.cluster.example.org"),
    "long": (LONG, LONG),
    "changed": ("before.example.org", "after"),
}
SECOND = "node2.cluster.example.org"
FEATURES = {"cgroups": (), "no-cgroups": ("--cgroups", "off")}
JOINS = ("never", "before", "during", "after")
WEB = {"command": ["sleep", "1000"], "count": 2}
UNITS = ("web-0", "web-1")

Start = Callable[..., Awaitable[RunInProcess]]


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    runs: list[RunInProcess] = []

    async def started(name: str, *arguments: str) -> RunInProcess:
        runs.append(RunInProcess(tmp_path, monkeypatch, name, *arguments))
        await runs[-1].start()
        return runs[-1]

    yield started
    for run in runs:
        await run.close()


@pytest.mark.parametrize(
    ("name", "feature", "join"), list(itertools.product(NAMES, FEATURES, JOINS)), ids=lambda value: str(value)
)
async def test_up_and_down_lose_nothing(start: Start, name: str, feature: str, join: str) -> None:
    first, later = NAMES[name]
    run = await start(first, *FEATURES[feature])
    await run.up()
    await run.wait_hosts(first)
    if join == "before":
        await run.join(SECOND)
        await run.wait_hosts(first, SECOND)
    await run.up(web=WEB)
    if join == "during":
        await run.join(SECOND)
    before = await run.wait_ready(*UNITS)
    if join == "after":
        await run.join(SECOND)
    hosts = (first,) if join == "never" else (first, SECOND)
    await run.wait_hosts(*hosts)
    assert {row.host for row in before.values()} == (set(hosts) if join == "before" else {first})
    if join != "during":
        assert {row.host for row in before.values()} <= set(hosts)

    await run.restart_coordinator(later)
    await run.wait_hosts(*hosts)
    await run.up(web=WEB)
    after = await run.wait_ready(*UNITS)
    assert {(row.unit, row.incarnation, row.pid) for row in after.values()} == {
        (row.unit, 1, row.pid) for row in before.values()
    }
    assert run.processes() == sorted((row.pid, f"{row.unit}.1") for row in before.values())

    end = await run.down()
    for host in hosts:
        assert any(line.startswith(f"{host}: ") for line in end.lines), end.lines
    unproven = [line for line in end.lines if line.startswith("NOT PROVEN: ")]
    if feature == "cgroups" and cgroups.usable():
        assert (end.state, unproven) == (OperationState.SUCCEEDED, []), end.lines
    else:
        assert end.state is OperationState.FAILED
        assert [line.split(": ")[1] for line in unproven] == [f"host {host}" for host in sorted(hosts)], end.lines
        assert all("Units were not in cgroups" in line for line in unproven)
    assert run.processes() == []
    for agent_name, agent in run.agents.items():
        await aeventually(lambda agent=agent: agent.poll() is not None, what=f"the end of the agent {agent_name}")
        assert agent.returncode == 0, run.log_of(agent_name)


async def test_second_machine_with_the_same_host_name_is_refused(start: Start) -> None:
    run = await start("node1")
    await run.up(web=WEB)
    before = await run.wait_ready(*UNITS)
    twin = await run.join("node1")
    assert await asyncio.to_thread(twin.wait, PATIENCE_S) == ExitCode.CONFLICT
    assert "Host node1 is the machine of the coordinator." in run.log_of("there-1")
    await run.join("node2")
    await run.wait_hosts("node1", "node2")
    twin = await run.join("node2", key="third")
    assert await asyncio.to_thread(twin.wait, PATIENCE_S) == ExitCode.CONFLICT
    assert "Another machine has joined the run as host node2." in run.log_of("there-3")
    await run.wait_hosts("node1", "node2")
    after = await run.units()
    assert {unit: row.pid for unit, row in after.items()} == {unit: row.pid for unit, row in before.items()}
