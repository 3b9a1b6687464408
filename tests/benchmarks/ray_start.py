"""Measures the time until `agentrl up` has four hosts in a Ray cluster ready, next to four empty actors of Ray itself.

Both are commands of their own: they import Ray, connect, and wait for a placement group with an actor on each node.
"""

from __future__ import annotations

import subprocess
import sys
import time

from tests.benchmarks.placed_start import seconds_of_up
from tests.benchmarks.report import Outcome, median
from tests.placement.ray_cluster import RayCluster

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
            ours.append(seconds_of_up({"ray": {"address": cluster.address}}, NODES))
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
