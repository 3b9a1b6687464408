"""Measures `agentrl up` with four hosts in a Ray cluster until all is ready, next to four empty actors of Ray itself.

Both are commands of their own: they import Ray, connect, and wait for a placement group with an actor on each node.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.report import Outcome, median
from tests.e2e.running import Run, running
from tests.placement.ray_cluster import RayCluster
from tests.ports import free_port

NODES, REPEATS = 4, 3
MOST_MORE_S = 5.0
EMPTY_ACTORS = """
import sys
import ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
count = int(sys.argv[2])
group = ray.util.placement_group([{"CPU": 1}] * count, strategy="STRICT_SPREAD")

class Empty:
    def ready(self):
        return True

made = [
    ray.remote(Empty).options(
        num_cpus=1,
        scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        ),
    ).remote()
    for index in range(count)
]
ray.get([each.ready.remote() for each in made])
"""


def measure() -> Outcome:
    outcome = Outcome(f"start of {NODES} hosts in a Ray cluster (medians of {REPEATS})")
    cluster = RayCluster(NODES)
    try:
        actors, ours = [], []
        for _ in range(REPEATS):
            actors.append(_empty_actors(cluster.address))
            ours.append(_up(cluster.address))
    finally:
        cluster.close()
    outcome.plain(f"{NODES} empty actors of Ray", median(actors), "s")
    outcome.plain(f"`up` until {NODES} hosts and a unit on each are ready", median(ours), "s")
    outcome.at_most("what `up` takes longer", median(ours) - median(actors), "s", MOST_MORE_S)
    return outcome


def _empty_actors(address: str) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", EMPTY_ACTORS, address, str(NODES)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return time.perf_counter() - began


def _up(address: str) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for run in running(Path(folder), "ray-start", factor=1.0):
            return _timed(run, address, Path(folder))
    raise AssertionError("there is one run")


def _timed(run: Run, address: str, folder: Path) -> float:
    run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{free_port()}"}
    run.config["hosts"] = {"node": {"count": NODES, "disk": str(folder / "disks")}}
    run.config["placement"] = {"ray": {"address": address}}
    for number in range(NODES):
        run.sidecar(f"web{number}", "sleep 1000", hosts=[f"node-{number}"])
    run.write()
    began = time.perf_counter()
    command(run, "up", str(run.file))
    took = time.perf_counter() - began
    command(run, "down", "--yes")
    return took


def command(run: Run, *words: str) -> None:
    process = run.start(*words)
    output, complaint = process.communicate(timeout=120)
    assert process.returncode in (0, 10), output + complaint
