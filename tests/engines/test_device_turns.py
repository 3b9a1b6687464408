"""An engine and the trainer take turns on one device."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from agentrl.config.load import load_config
from agentrl.engines.device_turns import DeviceTurns
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.interface import EngineCall, Sampling
from agentrl.engines.publication_follower import PublicationFollower
from agentrl.engines.publication_store import StoredPublications
from agentrl.errors import ConfigError
from agentrl.store import service_registry
from agentrl.store.database import Database, connect
from agentrl.store.documents import Service
from agentrl.training.device_turn import DeviceTurn
from tests.engines.conftest import Weights
from tests.waiting import aeventually

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def database(mongo_url: str) -> AsyncIterator[Database]:
    seam = connect(mongo_url, "turns")
    for name in ("Publication", "Service", "Task"):
        await seam.delete_many(name, {})
    yield seam
    await seam.close()


async def publish(database: Database, weights: Weights) -> None:
    path, manifest = f"weights/{weights.path.name}", msgspec.to_builtins(weights.manifest())
    await database.insert_new(
        "Publication", [{"_id": weights.version, "status": "announced", "path": path, "manifest": manifest}]
    )


async def test_engine_leaves_the_device_for_the_trainer_and_comes_back(
    database: Database, first: Weights, second: Weights, tmp_path: Path
) -> None:
    for weights in (first, second):
        shutil.copytree(weights.path, tmp_path / "weights" / weights.path.name)
    # A call takes ten seconds, so that it does not end before the engine leaves.
    engine = EmbeddedEngine(slots=4, context=256, gather_s=0.04)
    engine.start()
    me = Service(id="engine-0.1", unit="engine-0", kind="engine", url="http://127.0.0.1:1")
    follower = PublicationFollower(engine, StoredPublications(database), me, run_dir=tmp_path, second=engine)
    turns = DeviceTurns(follower, engine, lambda: service_registry.turn_is_taken(database))
    following = asyncio.create_task(follower.follow([turns.look]))
    now = 0.0
    turn = DeviceTurn(database, "trainer-0.1", clock=lambda: now)
    try:
        await publish(database, first)
        await aeventually(lambda: serves(database, 1))
        begun = asyncio.Event()
        call = asyncio.create_task(
            engine.generate(
                EngineCall("r", [4, 5], Sampling(max_new_tokens=250), deadline_s=60), on_progress=lambda _: begun.set()
            )
        )
        await begun.wait()
        now = 10.0
        await turn.take()
        assert turn.held
        ended = await call
        assert (ended.finish, follower.state) == ("abort", "parked"), (
            "the call is aborted, and its sampler continues it later"
        )
        assert engine._slots._kept is None, "the engine releases its cache"
        await publish(database, second)
        late = asyncio.create_task(
            engine.generate(EngineCall("late", [4, 5], Sampling(max_new_tokens=3), deadline_s=60))
        )
        done, _ = await asyncio.wait([late], timeout=0.5)
        assert not done
        assert follower.version == 1, "the engine loads nothing during the turn of the trainer"
        now = 30.0
        await turn.give()
        assert turn.share == pytest.approx(2 / 3)
        assert len((await late).ids) == 3
        await aeventually(lambda: serves(database, 2))
        # A trainer that died in its turn does not renew it.
        await turn.take()
        await turn._end_renewing()
        await database.update_many("Service", {"kind": "turn"}, {"$set": {"seen_at": LONG_AGO}})
        await aeventually(lambda: serves(database, 2))
    finally:
        following.cancel()
        await asyncio.wait([following])
        await turn.give()
        await engine.close()


async def serves(database: Database, version: int) -> bool:
    return [one.version for one in await service_registry.alive(database, "engine")] == [version]


@pytest.mark.parametrize(
    ("engines", "training", "sentence"),
    [
        ("kind: sglang", "", "needs args: --enable-memory-saver"),
        ("kind: embedded", "parallel: {shard: 2}", "is for a trainer of one process"),
    ],
)
def test_settings_that_cannot_take_turns_are_refused(
    tmp_path: Path, engines: str, training: str, sentence: str
) -> None:
    (tmp_path / "run.yaml").write_text(
        "name: r\nmodel: {build: tiny}\nenvironments: {a: {dataset: d.jsonl}}\n"
        f"engines: {{{engines}, takes_turns: true}}\ntraining: {{{training}}}\n"
    )
    with pytest.raises(ConfigError, match=sentence):
        load_config(tmp_path / "run.yaml")
