"""The steward as a real unit: ready over a real database, killed, replaced, drained."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol import messages
from agentrl.store import owners
from agentrl.store.database import Database
from agentrl.telemetry.data_plane_metrics import HELD_OUT_TRAINED
from tests.store.flow import claim_one
from tests.store.server import NAME
from tests.unit.fake_coordinator import Counterpart, Process
from tests.waiting import aeventually


class Stewards:
    """Lives of the steward's unit over one run directory."""

    def __init__(self, counterpart: Counterpart, url: str) -> None:
        self.counterpart = counterpart
        self.directory = counterpart.directory
        (self.directory / "mongo").mkdir()
        (self.directory / "mongo" / "url").write_text(url)
        self.lives: list[Process] = []

    def configure(self, *, rows: int = 40, more: str = "") -> None:
        dataset = self.directory / "train.jsonl"
        dataset.write_text("".join(json.dumps({"query": f"item {n}", "answer": n}) + "\n" for n in range(rows)) + more)
        config = {
            "name": NAME,
            "model": {"build": "tiny"},
            "environments": {"shop": {"dataset": str(dataset)}},
            "sampling": {"n": 4},
            "rollout": {"max_in_flight": 8},
            "training": {"groups": 2},
        }
        (self.directory / "config.json").write_text(json.dumps(config))

    def start(self, incarnation: int) -> Process:
        self.counterpart.got.clear()
        # The environment of the counterpart, with the state directory and the name of this incarnation.
        program = self.directory / "life.py"
        program.write_text(
            "import os, runpy\n"
            f"os.environ['AGENTRL_STATE_DIR'] = {str(self.directory)!r}\n"
            f"os.environ['AGENTRL_INCARNATION'] = 'steward-0.{incarnation}'\n"
            "os.environ['AGENTRL_GROUP'] = 'steward'\n"
            "runpy.run_module('daemons.steward', run_name='__main__', alter_sys=True)\n"
        )
        self.lives.append(Process(self.counterpart, [str(program)]))
        return self.lives[-1]

    async def up(self, incarnation: int) -> Process:
        life = self.start(incarnation)

        def is_ready() -> bool:
            assert life.process.poll() is None, life.text()
            return self.counterpart.report.ready

        await aeventually(is_ready)
        return life

    def close(self) -> None:
        for life in self.lives:
            life.close()


@pytest.fixture
async def stewards(mongo_url: str, db: Database) -> AsyncIterator[Stewards]:
    with tempfile.TemporaryDirectory(prefix="steward-", ignore_cleanup_errors=True) as directory:
        counterpart = Counterpart(Path(directory))
        counterpart.start()
        made = Stewards(counterpart, mongo_url)
        yield made
        made.close()
        counterpart.close()


async def test_a_steward_admits_is_killed_and_replaced_and_drains(stewards: Stewards, db: Database) -> None:
    stewards.configure()
    first = await stewards.up(1)
    await aeventually(lambda: admitted(db), what="two groups admitted")
    first.signal(signal.SIGKILL)
    await first.code()
    await owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler").open()
    claim = await claim_one(db, "sampler-0.1")
    assert claim is not None
    await owners.expire(db, "sampler-0.1", "killed")

    second = await stewards.up(2)

    async def replaced() -> bool:
        return await db.count("Record", {"seat": claim.record.seat, "task": claim.task.id, "attempt": 2}) == 1

    await aeventually(replaced, what="the next attempt of a record whose sampler died")
    assert await db.count("Owner", {"_id": "steward-0.1", "expired": True}) == 1
    await aeventually(lambda: "records under way" in stewards.counterpart.report.status)
    stewards.counterpart.tell(messages.Drain(grace_s=20))
    assert await second.code() == 0
    assert await db.count("Owner", {"role": "steward", "expired": False}) == 0


async def admitted(db: Database) -> bool:
    return await db.count("Record", {"status": "open"}) == 8


async def test_a_dataset_that_is_wrong_is_a_configuration_error(stewards: Stewards) -> None:
    stewards.configure(more='{"answer": 4}\n')
    life = stewards.start(1)
    assert await life.code() == ExitCode.CONFIG
    assert "train.jsonl line 41 has no query" in life.text()


async def test_a_prompt_in_two_splits_is_reported_with_the_count_and_an_example(
    stewards: Stewards, db: Database
) -> None:
    stewards.configure(more='{"query": "item 3", "split": "test"}\n{"query": " item  7", "split": "test"}\n')
    await stewards.up(1)
    ((name, count),) = await aeventually(
        lambda: [
            (name, value)
            for seen in stewards.counterpart.of(messages.UnitMetrics)
            for name, value in seen.values.items()
            if name.startswith(f"{HELD_OUT_TRAINED.name}/")
        ][:1]
    )
    assert count == 2
    where = "train.jsonl line 41 is held out, and train.jsonl line 4 trains on the same prompt"
    assert name == f"{HELD_OUT_TRAINED.name}/shop/{where}", "and nothing of the prompt"
