"""What only Slurm does: heterogeneous jobs, nodes that fail, jobs that a person cancels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.placement import Placed, State
from tests.placement.sites import ROOT, SlurmSite, opened
from tests.waiting import eventually

BIG, SMALL = "big", "small-0"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSite]:
    monkeypatch.chdir(ROOT)
    with opened("slurm", tmp_path) as site:
        assert isinstance(site, SlurmSite)
        site.hosts = (BIG, SMALL)
        yield site


def test_each_component_has_its_options_and_a_cancelled_job_is_not_submitted_again(site: SlurmSite) -> None:
    components = [{"hosts": BIG, "options": ["--cpus-per-task=2"]}, {"hosts": "small"}]
    site.settings = {"slurm": {"drain_s": 0, "components": components}}
    nodes = {host: node_of(one) for host, one in alive(site).items()}
    shown = site.cluster.ask("squeue", "--noheader", "--format=%N %C").splitlines()
    assert sorted(map(str.split, shown)) == sorted([[nodes[BIG], "2"], [nodes[SMALL], "1"]])

    site.cluster.free()
    for host in site.hosts:
        cancelled = answer(site, host, State.GONE)
        assert cancelled.dismissed, cancelled
        assert "cancelled" in cancelled.why
    site.open().release(site.hosts)
    assert site.open().describe() == ()
    assert not site.cluster.jobs()


def test_host_of_a_failed_node_gets_another_one_and_the_others_stay(site: SlurmSite) -> None:
    before, ask = alive(site), site.cluster.ask
    node = node_of(before[SMALL])
    ask("scontrol", "update", f"nodename={node}", "state=down", "reason=power lost")
    gone = answer(site, SMALL, State.GONE)
    assert f"node {node} out of job" in gone.why
    assert not gone.dismissed
    after = alive(site)
    assert node_of(after[SMALL]) != node
    assert after[BIG] == before[BIG]


def node_of(placed: Placed) -> str:
    return placed.where.rpartition(" ")[2]


def alive(site: SlurmSite) -> dict[str, Placed]:
    """All hosts, when they live."""
    found: dict[str, Placed] = {}

    def look() -> bool:
        found.update({one.host: one for one in site.open().ensure([site.wanted(host) for host in site.hosts])})
        return all(one.alive for one in found.values())

    eventually(look, what=f"two hosts: {found}")
    return found


def answer(site: SlurmSite, host: str, state: State) -> Placed:
    found: list[Placed] = []

    def look() -> bool:
        found[:] = site.open().ensure([site.wanted(host)])
        return found[0].state is state

    eventually(look, what=f"{host} to be {state}: {found}")
    return found[0]
