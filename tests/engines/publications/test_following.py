"""An engine follows publications through a real MongoDB."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.engines import publication_follower
from agentrl.engines.canary import Agreement, Canary
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.manifest import Manifest
from agentrl.engines.publication_follower import Announced, PublicationFollower
from agentrl.engines.publication_store import StoredPublications
from agentrl.files.frames import FilesError
from agentrl.store import lists, publications
from agentrl.store.documents import load
from agentrl.store.weight_documents import Publication
from tests.engines.conftest import Weights
from tests.engines.publications.parts import Database, document, follower_of, publish, service_of
from tests.waiting import aeventually


async def test_the_newest_publication_is_loaded_and_older_ones_are_skipped(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine = EmbeddedEngine(slots=4, context=64)
    engine.start()
    follower = follower_of(engine, store, run_dir)
    await follower.look()
    assert (follower.state, follower.version) == ("starting", None)
    await publish(database, first)
    await publish(database, second)
    await follower.look()
    assert (follower.state, follower.version) == ("serving", 2)
    assert (await engine.load()).version == 2
    assert (await document(database, 1))["status"] == "skipped"
    newest = await document(database, 2)
    assert (newest["status"], newest["served_by"]) == ("current", ["engine-0.1"])
    assert (await document(database, 1))["permits"] == []
    service = await database["Service"].find_one({"_id": "engine-0.1"})
    assert (service["state"], service["version"], service["slots"]) == ("serving", 2, 4)
    assert abs(service["seen_at"] - datetime.now(UTC)) < timedelta(seconds=60)
    await publish(database, first, version=3)
    await follower.look()
    assert (await document(database, 2))["status"] == "retained"
    await engine.close()


async def test_a_pull_is_abandoned_for_a_newer_version_but_not_twice_in_a_row(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(publication_follower, "LOOK_FOR_NEWER_S", 0.01)
    engine, news, begun, come = EmbeddedEngine(slots=4, context=64), list[str](), list[int](), asyncio.Event()
    engine.start()
    share = 0.6

    async def bring(announced: Announced) -> None:
        begun.append(announced.version)
        await come.wait()

    follower = PublicationFollower(
        engine, store, service_of(0), run_dir=run_dir, bring=bring, brought=lambda: share, on_news=news.append
    )
    await publish(database, first)
    looks = asyncio.create_task(follower.look())
    await aeventually(lambda: _begun(begun, 1))
    await publish(database, second)
    done, _ = await asyncio.wait([looks], timeout=0.2)
    assert not done, "a pull that is more than half done goes on"
    share = 0.4
    await looks
    assert news == ["version 1 is not got any further: 2 is there"]
    looks = asyncio.create_task(follower.look())
    await aeventually(lambda: _begun(begun, 1, 2))
    await publish(database, first, version=3)
    done, _ = await asyncio.wait([looks], timeout=0.2)
    assert not done, (
        "a second pull in a row is not abandoned, or an engine with slow transfers would never get a version"
    )
    come.set()
    await looks
    assert follower.version == 2
    await engine.close()


async def _begun(begun: list[int], *versions: int) -> bool:
    return begun == list(versions)


async def test_weights_with_a_different_canary_are_refused_once_with_the_reason(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine, news = EmbeddedEngine(slots=4, context=64), list[str]()
    engine.start()
    follower, problems = follower_of(engine, store, run_dir, news), list[str]()
    follower._on_problem = problems.append
    first_file = run_dir / "weights" / first.path.name / "model.safetensors"
    whole = first_file.read_bytes()
    first_file.write_bytes(whole[:-1])
    await publish(database, first, version=0)
    await follower.look()
    assert "version 0 is refused, so nothing serves: " in problems[-1]
    first_file.write_bytes(whole)
    await publish(database, first)
    await follower.look()
    assert problems[-1] == ""
    damaged = run_dir / "weights" / second.path.name / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    await publish(database, second)
    await publish(database, second, version=3, path="../elsewhere")
    for _ in range(2):
        await follower.look()
    assert "not within the run's directory" in (await document(database, 3))["reasons"][0]
    await publish(database, second, version=4)
    for _ in range(3):
        await follower.look()
    (reason,) = (await document(database, 4))["reasons"]
    assert "model.safetensors has" in reason
    assert reason.startswith("engine-0.1: ")
    assert (await document(database, 4))["status"] == "announced"
    assert (follower.state, follower.version, (await engine.load()).version) == ("serving", 1, 1)
    assert "version 1 still serves" in news[-1]
    assert (await document(database, 1))["status"] == "current"
    await engine.close()


async def test_version_without_files_is_tried_again_and_a_damaged_list_is_refused(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine, news = EmbeddedEngine(slots=4, context=64), list[str]()
    engine.start()
    follower, kept = follower_of(engine, store, run_dir, news), list[set[int]]()
    answers: list[Exception | None] = [None, FilesError("no host has it"), None, WeightsRefusedError("damaged")]

    async def bring(announced: Announced) -> None:
        if (failed := answers.pop(0)) is not None:
            raise failed

    async def keep(versions: Collection[int]) -> None:
        kept.append(set(versions))

    follower._bring, follower._keep = bring, keep
    await publish(database, first)
    await follower.look()
    await publish(database, second)
    with pytest.raises(FilesError):
        await follower.look()
    assert (follower.state, follower.version) == ("serving", 1)
    assert (await document(database, 1))["permits"] == [], "an engine that waits for files takes no permit"
    await follower.look()
    assert follower.version == 2
    await publish(database, first, version=3)
    await follower.look()
    assert follower.version == 2
    assert "refused version 3 (damaged); version 2 still serves" in news[-1]
    assert kept == [{1}, {2}]
    await engine.close()


async def test_the_canary_result_is_stored_for_every_engine_and_version(
    store: StoredPublications, database: Database, first: Weights, run_dir: Path
) -> None:
    true, began = first.manifest(), datetime.now(UTC) - timedelta(milliseconds=1)
    off = [[value + 5e-4 * (place % 2) for place, value in enumerate(one)] for one in true.canary.log_probs]
    shifted = Manifest(true.files, Canary(true.canary.ids, off))
    await publish(database, first)
    reported: list[Agreement] = []
    for slot in range(2):
        engine = EmbeddedEngine(slots=1, context=64)
        engine.start()
        me = service_of(slot)
        follower = PublicationFollower(engine, store, me, run_dir=run_dir, second=engine, on_canary=reported.append)
        await follower.look()
        await database["Publication"].update_one({"_id": 1}, {"$set": {"manifest": msgspec.to_builtins(shifted)}})
        await engine.close()
    first_reported, second_reported = reported
    assert first_reported.largest < 1e-4
    assert second_reported.largest == pytest.approx(5e-4, abs=1e-4)
    found = load(Publication, await document(database, 1))
    assert {one.engine: one.largest for one in found.canary} == {
        "engine-0.1": first_reported.largest,
        "engine-1.1": second_reported.largest,
    }
    assert found.canary[1].mean == pytest.approx(2.5e-4, abs=1e-4)
    assert found.canary_largest == second_reported.largest
    passed = [await publications.last_canary(store._database, {"$regex": f"^engine-{slot}\\."}) for slot in range(2)]
    assert [(one.engine, one.version) for one in passed if one] == [("engine-0.1", 1), ("engine-1.1", 1)]
    assert passed[0] is not None
    assert passed[1] is not None
    assert began < passed[0].at < passed[1].at < datetime.now(UTC)
    # A repeated report, as after a lost answer, is stored once.
    await store.served(1, "engine-1.1", second_reported, at=passed[1].at)
    assert len((await document(database, 1))["canary"]) == 2
    page = await lists.page(store._database, "Publication", filter="canary_largest > 0.0004")
    assert [row["canary_largest"] for row in page.rows] == [second_reported.largest]


async def test_an_engine_that_starts_after_a_bad_version_serves_the_one_before(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine = EmbeddedEngine(slots=4, context=64)
    engine.start()
    follower = follower_of(engine, store, run_dir)
    (run_dir / "weights" / second.path.name / "model.safetensors").unlink()
    await publish(database, first, status="current")
    await publish(database, second)
    for _ in range(2):
        await follower.look()
    assert (follower.state, follower.version) == ("serving", 1)
    assert len((await document(database, 2))["reasons"]) == 1
    await engine.close()
