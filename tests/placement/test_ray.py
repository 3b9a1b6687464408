"""What is special about hosts in a Ray cluster: their bundles, and actors that end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from agentrl.config.placement import Ray
from agentrl.errors import UnavailableError
from agentrl.placement import Placed, PlacedRun, State, ray_actors
from agentrl.placement.ray_actors import RayNote, RayPlacement
from tests.placement.sites import ROOT, RaySite, opened
from tests.ports import free_port
from tests.waiting import PATIENCE_S, eventually

NODE = "5f" * 28
KILL = """
import ray, sys
ray.init(address=sys.argv[1], namespace=sys.argv[2], logging_level="ERROR", log_to_driver=False)
ray.kill(ray.get_actor(sys.argv[3]), no_restart=True)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RaySite]:
    monkeypatch.chdir(ROOT)
    with opened("ray", tmp_path) as site:
        assert isinstance(site, RaySite)
        yield site


def test_agent_sees_the_devices_of_its_bundle_and_leaves_when_its_actor_has_ended(
    site: RaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = {"hosts": ["h3"], "cpus": 1000}
    site.settings = {"ray": {**site.ray, "bundles": [{"hosts": ["h1"], "cpus": 0.5, "gpus": 1}, greedy]}}
    (placed,) = site.open().ensure([site.wanted("h1")])
    assert placed.alive, placed
    (agent,) = site.agents("h1")
    environ = psutil.Process(agent).environ()
    assert environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert "OMP_NUM_THREADS" not in environ

    monkeypatch.setattr(ray_actors, "_ROOM_WITHIN_S", 0.1)
    (waits,) = site.open().ensure([site.wanted("h3")])
    assert waits.state is State.STARTING
    assert waits.why == "Ray has no room for its group yet; this host needs CPU 1000 on a node."
    site.open().release(["h3"])

    address = str(site.ray["address"])
    namespace = f"agentrl-{site.run.uuid}"
    command = [sys.executable, "-W", "ignore", "-c", KILL, address, namespace, "h1"]
    subprocess.run(command, check=True, capture_output=True, timeout=2 * PATIENCE_S)
    eventually(lambda: not site.agents("h1"), what="the end of an agent without an actor")
    (ended,) = site.open().describe()
    assert (ended.state, ended.why) == (State.LOST, "its actor has ended.")
    (again,) = site.open().ensure([site.wanted("h1")])
    assert again.alive, again


@pytest.mark.parametrize(
    ("reason", "state"), [(1, State.GONE), (2, State.LOST), (3, State.GONE), (4, State.GONE), (None, State.LOST)]
)
def test_node_that_was_ended_on_purpose_is_gone_and_node_that_ray_lost_is_first_lost(
    reason: int | None, state: State, tmp_path: Path
) -> None:
    site = RayPlacement(Ray(lost_s=100), PlacedRun("uuid", "demo", str(tmp_path)))
    nodes = {NODE: {"Alive": False, "DeathReason": reason, "NodeManagerAddress": "10.0.0.7"}} if reason else {}
    site._notes.update({"h1": RayNote("group", 0, "run", "/var/tmp/h1", NODE)})

    def take_out(seen_s_ago: float = 0.0) -> Placed | None:
        note = site._notes.all()["h1"]
        if seen_s_ago:
            note = msgspec.structs.replace(note, lost_at=time.time() - seen_s_ago)
        return site._take_out(nodes, "h1", note)

    placed = take_out()
    assert placed is not None
    assert placed.state is state
    assert NODE[:8] in placed.where
    if state is State.LOST:
        assert placed.why == "its node is lost, and counts as gone in 100 s: Ray has lost it."
        assert site._notes.all()["h1"].lost_at > 0
        placed = take_out(seen_s_ago=101)
    assert placed is not None
    assert (placed.state, placed.why) == (State.GONE, "its node is gone: Ray has lost it.")
    assert take_out() is None, "the next start is on another node"


def test_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    site = RayPlacement(Ray(address=where), PlacedRun("uuid", "demo", str(tmp_path)))
    with pytest.raises(UnavailableError, match=f"The Ray cluster at {where} does not answer: .*refused"):
        site.ensure([])
