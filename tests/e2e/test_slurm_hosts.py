"""Runs on the nodes of a real Slurm: in a job that `up` submits, and in the job that it is in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.protocol.rows import HostRow
from tests.e2e.running import PYTHON, Run, running
from tests.placement.slurm_cluster import NODES, SlurmCluster
from tests.ports import free_triplet
from tests.waiting import PATIENCE_S, eventually

UP_WITHIN_S = 2 * PATIENCE_S
WORKERS = ("worker-0", "worker-1", "worker-2")
UNITS = ("first-0", "second-0", "third-0")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def cluster() -> SlurmCluster:
    return SlurmCluster.shared()


@pytest.fixture
def run(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Run]:
    for run in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=0.3):
        run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{free_triplet()}"}
        run.config["hosts"] = {"worker": {"count": 3, "disk": str(tmp_path / "disks")}}
        run.config["placement"] = {"slurm": {"drain_s": 100, "options": ["--partition=low", "--exclusive"]}}
        for number, host in enumerate(WORKERS):
            run.unit(UNITS[number].removesuffix("-0"), "step_loop", hosts=host)
        yield run


def hosts(run: Run) -> dict[str, HostRow]:
    return {row.host: row for row in run.rows().values() if isinstance(row, HostRow)}


def workers_up(run: Run) -> bool:
    return [hosts(run)[host].state for host in WORKERS] == ["up"] * 3


def test_preempted_job_is_drained_queued_again_and_given_back(cluster: SlurmCluster, run: Run) -> None:
    run.up()
    (job,) = cluster.jobs("RUNNING")
    assert workers_up(run)
    assert {row.host for row in run.units().values()} == set(WORKERS)

    more = ("--exclusive", f"--nodes={len(NODES)}", "--output=/dev/null", "--wrap", "sleep 1000")
    cluster.ask("sbatch", "--partition=high", *more)
    eventually(
        lambda: all(f"job {job} of Slurm" in hosts(run)[host].reason for host in WORKERS),
        within_s=UP_WITHIN_S,
        what="why they left",
    )
    urgent = next(each for each in cluster.jobs() if each != job)
    eventually(lambda: urgent in cluster.jobs("RUNNING"), what="the other job")
    reasons = {row.reason for row in run.units().values()}
    assert all("job" in reason for reason in reasons), reasons
    ended = [row for row in run.rows().values() if type(row).__name__ == "IncidentRow"]
    assert not ended, "the units finished their work before the job was taken away"

    cluster.ask("scancel", urgent)
    # Slurm would wait for two minutes. It may refuse an earlier start of the job; then another job is submitted.
    eventually(lambda: "BeginTime" in cluster.ask("squeue", "--noheader", "--format=%r"), what="the requeued job")
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
    eventually(lambda: workers_up(run), within_s=UP_WITHIN_S, what="the same job again")
    for unit in UNITS:
        run.wait_incarnation(unit, 1)
    assert len(cluster.jobs("RUNNING")) == 1

    cluster.free()
    eventually(
        lambda: all("`agentrl up` starts it again" in hosts(run)[host].reason for host in WORKERS),
        within_s=UP_WITHIN_S,
        what="hosts that a person took away",
    )
    assert not cluster.jobs(), "a job that a person cancelled is not submitted again"
    assert {run.wait_state(unit, "pending").host for unit in UNITS} <= {"", *WORKERS}
    down = run.cli("down", "--yes", within_s=UP_WITHIN_S)
    assert down["proven"], down
    assert not cluster.jobs()
    assert not run.processes()


def test_up_inside_a_job_takes_its_other_nodes(cluster: SlurmCluster, run: Run) -> None:
    run.write()
    up = f"{PYTHON} -m agentrl up {run.file} --json; exec sleep 1000"
    home = f"AGENTRL_HOME={run.environ['AGENTRL_HOME']}"
    cluster.ask("sbatch", "--nodes=4", f"--export=ALL,{home}", f"--output={run.file.parent}/job.out", "--wrap", up)
    eventually((run.state_dir / "coordinator.json").exists, within_s=UP_WITHIN_S, what="the coordinator")
    eventually(lambda: workers_up(run), within_s=UP_WITHIN_S, what="three hosts")
    for unit in UNITS:
        run.wait_state(unit, "ready")
    (job,) = cluster.jobs("RUNNING")
    steps = cluster.ask("squeue", "--steps", "--noheader", "--format=%j %N").splitlines()
    placed = dict(line.split() for line in steps if line.startswith("agentrl-"))
    assert sorted(placed) == [f"agentrl-{host}" for host in WORKERS]
    batch = cluster.ask("squeue", "--noheader", "--format=%B").strip()
    assert sorted({*placed.values(), batch}) == list(NODES), "the node of the coordinator has no second host"
    assert run.cli("down", "--yes", within_s=UP_WITHIN_S)["proven"]
    assert cluster.jobs("RUNNING") == [job], "a job that up did not submit is left alone"
    cluster.free()
