"""Measures the time until `agentrl up` has four hosts on nodes of Slurm ready, next to four empty jobs of Slurm."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.benchmarks.placed_start import seconds_of_up
from tests.benchmarks.report import Outcome, median
from tests.placement.slurm_cluster import NODES, SlurmCluster
from tests.waiting import eventually

REPEATS = 5
MOST_MORE_S = 5.0


def measure() -> Outcome:
    count = len(NODES)
    outcome = Outcome(f"start of {count} hosts on the nodes of Slurm (medians of {REPEATS})")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster, jobs, ours = SlurmCluster(Path(folder)), [], []
        try:
            cluster.start()
            for _ in range(REPEATS):
                jobs.append(_empty_jobs(cluster))
                ours.append(_up(cluster))
        finally:
            cluster.close()
    outcome.plain(f"{count} empty jobs of Slurm", median(jobs), "s")
    outcome.plain(f"`up` until {count} hosts and a unit on each are ready", median(ours), "s")
    outcome.at_most("what `up` takes longer", median(ours) - median(jobs), "s", MOST_MORE_S)
    return outcome


def _empty_jobs(cluster: SlurmCluster) -> float:
    began = time.perf_counter()
    for _ in NODES:
        cluster.ask("sbatch", "--exclusive", "--nodes=1", "--output=/dev/null", "--wrap", "exec sleep 1000")
    eventually(lambda: len(cluster.jobs("RUNNING")) == len(NODES), what="four jobs")
    took = time.perf_counter() - began
    cluster.free()
    return took


def _up(cluster: SlurmCluster) -> float:
    took = seconds_of_up({"slurm": {"options": ["--exclusive"]}}, len(NODES))
    cluster.free()
    return took
