"""A run whose coordinator and host agents are pods: they join, are evicted, come back, and end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.networks import Network
from tests.e2e.pods import POLL_S, Pod, find
from tests.e2e.running import PYTHON
from tests.waiting import eventually

HEAD, FIRST, SECOND = "agentrl-coordinator-0", "agentrl-agents-0", "agentrl-agents-1"


class Cluster:
    def __init__(self, folder: Path, network: Network) -> None:
        self._folder, self._network = folder, network
        self._files = {"run-file": folder / "run-file", "host-keys": folder / "host-keys"}
        for each in self._files.values():
            each.mkdir()
        self._names = f"{network.address(HEAD)} agentrl-coordinator\n"
        self.pods: dict[str, Pod] = {}

    def write_run_file(self) -> None:
        """Write the run file of the example, with a group that reports its progress."""
        plain = yaml.safe_load(find("example", "ConfigMap", "agentrl-run")["data"]["run.yaml"])
        step_loop = [PYTHON, "-m", "assets.units.step_loop", "--every", "0.05"]
        plain["sidecars"]["loop"] = {"command": step_loop, "speaks": True, "count": 2, "hosts": "agentrl-agents"}
        (self._files["run-file"] / "run.yaml").write_text(yaml.safe_dump(plain))

    def start(self, name: str) -> Pod:
        self.pods[name] = pod = Pod(name, self._folder, self._network, self._files, self._names)
        pod.start()
        return pod

    def make_key(self, head: Pod, name: str) -> None:
        """Make the key and its secret as docs/clusters.md describes."""
        head.agentrl("hosts", "add", name, "--out", f"/tmp/{name}.key", "--yes")
        secret = self._files["host-keys"] / f"{name}.key"
        secret.write_text(head.run("cat", f"/tmp/{name}.key").stdout)
        secret.chmod(0o400)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    network = Network(f"t-{uuid.uuid4().hex[:8]}", (HEAD, FIRST, SECOND))
    try:
        network.lay()
        cluster = Cluster(tmp_path, network)
        yield cluster
        for pod in cluster.pods.values():
            pod.close()
    finally:
        network.remove()


def placed(head: Pod) -> dict[str, tuple[str, int]]:
    """Host and incarnation of the units that are ready."""
    units = head.agentrl("status")["units"]
    return {each["unit"]: (each["host"], each["incarnation"]) for each in units if each["state"] == "ready"}


def hosts_up(head: Pod) -> set[str]:
    return {each["host"] for each in head.agentrl("hosts", "list") if each["state"] == "up"}


def all_on(head: Pod, name: str) -> dict[str, tuple[str, int]]:
    def there() -> Any:
        units = placed(head)
        assert len(units) == 4, head.agentrl("status")["units"]
        assert {host for host, _ in units.values()} == {name}
        return units

    return eventually(there, what=f"all units on {name}", every_s=POLL_S)


def test_pods_join_are_evicted_and_come_back(cluster: Cluster) -> None:
    cluster.write_run_file()
    head = cluster.start(HEAD)
    head.wait_ready()
    for name in (FIRST, SECOND):
        cluster.make_key(head, name)
        cluster.start(name).wait_ready()
    all_on(head, FIRST)  # the first host that joined
    assert hosts_up(head) == {HEAD, FIRST, SECOND}

    # Eviction is a drain: the units start elsewhere, and nothing is lost.
    assert cluster.pods[FIRST].evict() == 0
    all_on(head, SECOND)
    left = next(each for each in head.agentrl("hosts", "list") if each["host"] == FIRST)
    assert (left["state"], left["reason"]) == ("starting", "left (its container was stopped)")
    assert "host-lost" not in str(head.agentrl("alerts", "list"))
    assert not head.agentrl("events", "--kind", "incident")
    cluster.start(FIRST).wait_ready()
    assert hosts_up(head) == {HEAD, FIRST, SECOND}

    # The coordinator's own pod moves. The others notice it and go on.
    before = placed(head)
    assert head.evict() == 0
    second = cluster.pods[SECOND]
    why = eventually(lambda: second.probe("readiness"), what="that it is not ready", every_s=POLL_S)
    assert "no coordinator answers" in why
    assert second.probe("liveness") == ""
    head = cluster.start(HEAD)
    for pod in (head, *(cluster.pods[name] for name in (FIRST, SECOND))):
        pod.wait_ready()
    assert all_on(head, SECOND) == before

    # A run that was taken down stays down when Kubernetes starts the containers again.
    assert head.agentrl("down", "--yes")
    assert [cluster.pods[name].wait() for name in (HEAD, FIRST, SECOND)] == [0, 0, 0]
    head = cluster.start(HEAD)
    eventually(lambda: "was taken down" in head.log.read_text(), what="why it does nothing")
    assert "No host agent" in head.probe("readiness")
    assert head.evict() == 0
