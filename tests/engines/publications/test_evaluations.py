"""Versions that evaluations need are served."""

from __future__ import annotations

from pathlib import Path

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.interface import EngineCall, Sampling
from agentrl.engines.publication_follower import PublicationFollower
from agentrl.engines.publication_store import StoredPublications
from tests.engines.conftest import Weights
from tests.engines.publications.parts import Database, document, follower_of, publish, service_of


async def test_a_version_that_an_evaluation_wants_is_held_beside_the_newest(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine = EmbeddedEngine(slots=4, context=64)
    engine.start()
    follower = follower_of(engine, store, run_dir)
    await publish(database, first)
    await follower.look()
    await follower.look_for_pins()
    await database["Task"].insert_one({"_id": "e/test/0/0", "purpose": "eval", "status": "admitted", "version": 1})
    await publish(database, second)
    await follower.look()
    await follower.look_for_pins()
    assert (await engine.load()).versions_loaded == (1, 2)
    greedy = Sampling(max_new_tokens=5, temperature=0.0)
    answer = await engine.generate(EngineCall("r", [4, 5], greedy, deadline_s=20, version=1))
    assert answer.ids == first.greedy([4, 5], 5)
    assert (await database["Service"].find_one({"_id": "engine-0.1"}))["versions_loaded"] == [1, 2]
    await database["Task"].update_one({"_id": "e/test/0/0"}, {"$set": {"status": "done"}})
    await follower.look()
    await follower.look_for_pins()
    assert (await engine.load()).versions_loaded == (2,)
    # An evaluation may be requested before its tasks exist, and when the engine already has a newer version.
    await database["Publication"].update_one({"_id": 1}, {"$set": {"evaluation": "wanted"}})
    await follower.look()
    await follower.look_for_pins()
    assert (await engine.load()).versions_loaded == (1, 2)
    await engine.close()


async def test_an_engine_for_evaluations_serves_their_version_and_changes_no_publication(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine = EmbeddedEngine(slots=4, context=64)
    engine.start()
    follower = PublicationFollower(
        engine, store, service_of(0), run_dir=run_dir, second=engine, evaluates=False, only_evaluates=True
    )
    await publish(database, first, status="retained")
    await publish(database, second)
    await follower.look_for_pins()
    await follower.look()
    assert follower.version is None
    for version in (1, 2):
        await database["Publication"].update_one({"_id": version}, {"$set": {"evaluation": "wanted"}})
        await follower.look_for_pins()
        await follower.look()
        await follower.report()
        service = await database["Service"].find_one({"_id": "engine-0.1"})
        assert (service["state"], service["version"], service["versions_loaded"]) == ("serving", None, [version])
        await database["Publication"].update_one({"_id": version}, {"$set": {"evaluation": "done"}})
    assert [(await document(database, version))["status"] for version in (1, 2)] == ["retained", "announced"]
    # An engine for evaluations needs no permit, and does not count when other engines ask for one.
    for number in (1, 2, 3):
        await store.report(service_of(number, state="serving"))
    assert await store.permit(2, "engine-1.1")
    assert not await store.permit(2, "engine-2.1")
    await engine.close()


async def test_a_skipped_version_is_served_for_its_evaluation(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine = EmbeddedEngine(slots=4, context=64)
    engine.start()
    follower = follower_of(engine, store, run_dir)
    await publish(database, first, evaluation="wanted")
    await publish(database, second)
    await follower.look()
    assert (await document(database, 1))["status"] == "skipped"
    await follower.look_for_pins()
    assert (await engine.load()).versions_loaded == (1, 2)
    await engine.close()
