"""A gang of real torch programs over two and four hosts: it starts as a whole, computes, and restarts as a whole.

Each host agent lives in a network namespace of its own; all processes are visible to this test and to each rank, which
looks for living processes of other epochs before it does anything else.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.this_host import default_name
from agentrl.protocol.rows import UnitRow
from tests.e2e.hosts import HERE, Hosts, run_on_hosts
from tests.e2e.running import PYTHON
from tests.waiting import eventually

OTHERS = ("b", "c", "d")
PROGRAM = Path(__file__).parent / "programs" / "summing_ranks.py"
BEGINS_WITHIN_S = 120.0
"""Each rank imports torch, and they share two processors."""
pytestmark = pytest.mark.timeout(400)


class Gang:
    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.run, self.folder = hosts, hosts.run, folder

    def environment_of(self, epoch: int, rank: int) -> dict[str, Any]:
        return dict(json.loads((self.folder / f"began-{epoch}-{rank}").read_text()))

    def units(self) -> dict[str, UnitRow]:
        return {name: row for name, row in self.run.units().items() if row.group == "train"}

    @staticmethod
    def epoch_of(units: dict[str, UnitRow]) -> int:
        (epoch,) = {row.rank.epoch for row in units.values() if row.rank is not None}
        return epoch

    def computes(self, ranks: int, *, above: int, but: str = "") -> int:
        """Wait until all ranks of a later epoch have the same correct sums. Returns that epoch. No rank may have found
        a process of another epoch alive, except `but`, which is out of reach.
        """

        def done() -> int:
            sums = [json.loads((self.folder / f"sums-{rank}").read_text()) for rank in range(ranks)]
            epochs = {each["epoch"] for each in sums}
            assert min(epochs) > above, sums
            assert len(epochs) == 1, sums
            assert {each["sum"] for each in sums} == {ranks * (ranks + 1) / 2}, sums
            return int(epochs.pop())

        epoch = eventually(done, within_s=BEGINS_WITHIN_S, what="sums of a new epoch")
        for file in self.folder.glob("began-*"):
            others = json.loads(file.read_text())["others"]
            assert set(others) <= {but}, f"{file.name} found {others}"
        return epoch

    def began(self, rank: int, *, above: int) -> int:
        """Wait until this rank of a later epoch has begun."""

        def there() -> int:
            epochs = [int(file.name.split("-")[1]) for file in self.folder.glob(f"began-*-{rank}")]
            assert max(epochs, default=0) > above
            return max(epochs)

        return eventually(there, within_s=BEGINS_WITHIN_S, what=f"rank {rank} after epoch {above}")


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    folder = tmp_path_factory.mktemp("gang")
    for hosts in run_on_hosts(folder, f"t-{uuid.uuid4().hex[:8]}", OTHERS, factor=0.1, shared=True):
        run, network = hosts.run, hosts.network
        run.environ["AGENTRL_DEVICES"] = "2"
        (folder / "reports").mkdir()
        command = [PYTHON, str(PROGRAM), str(folder / "reports")]
        run.sidecar("train", command, ranks=4, resources={"gpus": 2}, term_grace_s=3.0, fenced=True)
        names = {default_name(): HERE} | {name: name for name in OTHERS}
        run.config["hosts"] = {name: {"private": network.address(place)} for name, place in names.items()}
        hosts.up()
        yield Gang(hosts, folder / "reports")


def test_all_ranks_start_or_none(gang: Gang) -> None:
    run = gang.run
    lacks = f"no host can take rank 1 of its 4 ({default_name()}: has room for 1: needs 2 GPU for each, 2 free"
    eventually(lambda: lacks in run.unit_row("train-2").reason, what="what the gang lacks")
    (chain,) = run.cli("why")["chains"]
    assert chain["culprit"] == "train-0"
    assert lacks in chain["sentence"]
    assert chain["sentence"].endswith("2 more wait behind it")
    for host in OTHERS:
        assert not list(gang.folder.iterdir()), "a rank started without the others"
        gang.hosts.join(host)
    assert gang.computes(4, above=0) == 1
    hosts = {f"train-{rank}": host for rank, host in enumerate((default_name(), *OTHERS))}
    assert {name: row.host for name, row in gang.units().items()} == hosts
    for rank in range(4):
        assert gang.environment_of(1, rank) == {
            "others": [],
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "MASTER_ADDR": gang.hosts.network.address(HERE),
            "CUDA_VISIBLE_DEVICES": "0,1",
        }


def test_gang_has_other_ranks_after_it_was_scaled(gang: Gang) -> None:
    gang.run.cli("scale", "train", "2")
    assert gang.computes(2, above=1) == 2
    assert {name: row.incarnation for name, row in gang.units().items()} == {"train-0": 2, "train-1": 2}
    assert "epoch 2 after: it has 2 ranks now" in gang.run.raw("status").stdout


def test_death_of_a_rank_in_training_or_before_the_ranks_meet_restarts_all(gang: Gang) -> None:
    run, before = gang.run, gang.units()
    (gang.folder / "hold-1").touch()
    run.kill(before["train-0"].pid)
    third = gang.began(1, above=2)
    gang.began(0, above=2)
    after = {name: run.wait_incarnation(name, above=row.incarnation) for name, row in before.items()}
    assert [after[name].restarts - before[name].restarts for name in after] == [1, 0], (
        "only the rank that died counts as restarted"
    )
    (gang.folder / "hold-1").unlink()
    run.kill(after["train-1"].pid)
    assert gang.computes(2, above=third) == third + 1


def test_death_of_a_rank_while_it_ends_is_no_obstacle(gang: Gang) -> None:
    run, before = gang.run, gang.units()
    (gang.folder / "end-1").touch()
    restart = run.start("restart", "train-0", "--yes")
    eventually(lambda: run.unit_row("train-1").state == "stopping", what="rank 1 to get the order to end")
    run.kill(before["train-1"].pid)
    (gang.folder / "end-1").unlink()
    gang.computes(2, above=gang.epoch_of(before))
    restart.communicate(timeout=BEGINS_WITHIN_S)
    assert restart.returncode == 0
    assert {name: row.restarts for name, row in gang.units().items()} == {"train-0": 0, "train-1": 0}


def test_gang_moves_if_a_host_of_it_is_gone_and_its_rank_there_is_ended_later(gang: Gang) -> None:
    run, network, before = gang.run, gang.hosts.network, gang.units()
    lost = before["train-1"]
    network.cut(lost.host)
    eventually(lambda: run.unit_row("train-1").host not in ("", lost.host), within_s=BEGINS_WITHIN_S, what="a new host")
    gang.computes(2, above=gang.epoch_of(before), but=f"train-1.{lost.incarnation}")
    assert run.alive(lost.pid), "the rank on the unreachable host is still alive"
    network.mend(lost.host)
    eventually(lambda: not run.alive(lost.pid), what="the end of the rank that was left behind")
    gang.run.cli("down", "--yes")
