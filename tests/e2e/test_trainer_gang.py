"""A trainer whose ranks are on two hosts trains, and goes on from its checkpoint after one of them was killed.

The hosts share no directory. Everything but a rank of the trainer is on that of the coordinator.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl.config.parallel import Parallel
from agentrl.config.this_host import default_name
from agentrl.store import run_database
from agentrl.training import offline
from agentrl.training.checkpoints import WEIGHTS_FILE
from tests.e2e.hosts import HERE, Hosts, run_on_hosts
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

THERE = "b"
UP_WITHIN_S = 400.0
STEPS = 3
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    yield from run_on_hosts(tmp_path, f"t-{uuid.uuid4().hex[:8]}", (THERE,), factor=0.5)


def test_trainer_on_two_hosts_goes_on_after_a_rank_was_killed(hosts: Hosts) -> None:
    run, network = hosts.run, hosts.network
    write_data(run.file.parent)
    run.config |= data_plane(steps=STEPS)
    run.config["training"] |= {"groups": 2, "parallel": {"shard": 2}, "gpus": 2, "checkpoint_every": 1, "dumps": 9}
    run.environ["AGENTRL_DEVICES"] = "1"
    run.config["hosts"] = {
        default_name(): {"runs": "trainer", "private": network.address(HERE)},
        THERE: {"runs": "trainer", "private": network.address(THERE)},
    }
    hosts.up()
    lacks = "needs 1 GPU for each, 1 free; b: has not registered"
    eventually(lambda: lacks in run.unit_row("trainer-1").reason, within_s=UP_WITHIN_S, what="why it waits")
    hosts.join(THERE)
    eventually(lambda: complete_checkpoints(hosts), within_s=UP_WITHIN_S, what="a checkpoint")
    first = run.wait_state("trainer-1", "ready", within_s=UP_WITHIN_S)
    assert (first.host, run.unit_row("trainer-0").host) == (THERE, default_name())
    mine = hosts.dir(THERE)
    assert same_files(run.dir / "model", mine / "model"), "the ranks started from the same model"
    run.kill(first.pid)
    for rank in range(2):
        row = run.wait_state(f"trainer-{rank}", "stopped", within_s=UP_WITHIN_S)
        assert (row.done, row.incarnation, row.restarts) == (True, 2, rank)
    assert run.cli("accounting")["steps"] == {"committed": STEPS}
    (taken,) = (mine / "checkpoints").iterdir()
    assert same_files(run.dir / "checkpoints" / taken.name, taken), (
        "the rank continued from the checkpoint of the other host"
    )
    assert distance_from_one_process(hosts) < 0.1, "Muon amplifies rounding differences; nothing else may differ"


def complete_checkpoints(hosts: Hosts) -> bool:
    _, shown = hosts.run.cli("checkpoints", "list", check=False)
    return any(row["status"] == "complete" for row in (shown or {}).get("rows", ()))


def same_files(here: Path, there: Path) -> bool:
    return {one.name: one.read_bytes() for one in here.iterdir()} == {
        one.name: one.read_bytes() for one in there.iterdir()
    }


def distance_from_one_process(hosts: Hosts) -> float:
    """The distance of the weights to those that one process learns from the same batches, relative to what it
    learns."""
    folder, out = hosts.run.dir, hosts.run.file.parent / "alone"
    config = run_database.configuration(folder)
    alone = config.model_copy(update={"training": config.training.model_copy(update={"parallel": Parallel()})})
    first = min((folder / "weights").iterdir())
    done = offline.train_recorded(
        alone, folder / "dumps", start=first, out=out, as_configured=False, on_step=lambda _: True
    )
    assert done.steps == STEPS
    (last,) = (folder / "checkpoints").glob(f"step-*{STEPS}.*")
    before, mine, expected = (load_file(place / WEIGHTS_FILE) for place in (first, last, out))
    apart = sum(float((mine[name] - value).square().sum()) for name, value in expected.items())
    learned = sum(float((value - before[name]).square().sum()) for name, value in expected.items())
    return math.sqrt(apart / learned)
