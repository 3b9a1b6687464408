"""An engine follows publications through a real MongoDB, and as a process of a run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pymongo import AsyncMongoClient

from agentrl.config.http_token import http_token
from agentrl.engines import publication_follower
from agentrl.engines.canary import Agreement, Canary
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import EngineGoneError, Load, Sampling, WeightsRefusedError
from agentrl.engines.manifest import Manifest
from agentrl.engines.publication_follower import Announced, PublicationFollower
from agentrl.engines.publication_store import StoredPublications
from agentrl.files.frames import FilesError
from agentrl.store import lists, publications
from agentrl.store.database import connect
from agentrl.store.documents import Publication, Service, load
from tests.engines.conftest import Weights
from tests.waiting import aeventually

ROOT = Path(__file__).parents[2]
Database = Any


def service_of(slot: int, **more: Any) -> Service:
    facts = {"unit": f"engine-{slot}", "kind": "engine", "url": "http://127.0.0.1:1", "version": 1}
    return Service(id=f"engine-{slot}.1", **{**facts, **more})


@pytest.fixture
async def database(mongo_url: str) -> AsyncIterator[Database]:
    async with AsyncMongoClient(mongo_url, tz_aware=True) as client:
        database = client["test"]
        for name in ("Publication", "Service", "Task"):
            await database[name].delete_many({})
        yield database


@pytest.fixture
async def store(mongo_url: str, database: Database) -> AsyncIterator[StoredPublications]:
    seam = connect(mongo_url, "test")
    yield StoredPublications(seam)
    await seam.close()


@pytest.fixture
def run_dir(tmp_path: Path, first: Weights, second: Weights) -> Path:
    for weights in (first, second):
        shutil.copytree(weights.path, tmp_path / "weights" / weights.path.name)
    return tmp_path


async def publish(database: Database, weights: Weights, version: int | None = None, **changes: Any) -> None:
    await database["Publication"].insert_one(
        {
            "_id": weights.version if version is None else version,
            "status": "announced",
            "path": f"weights/{weights.path.name}",
            "manifest": msgspec.to_builtins(weights.manifest()),
            **changes,
        }
    )


async def document(database: Database, version: int) -> dict[str, Any]:
    found: dict[str, Any] = await database["Publication"].find_one({"_id": version})
    return found


def follower_of(engine: Any, store: Any, run_dir: Path, news: list[str] | None = None) -> PublicationFollower:
    me = service_of(0)
    return PublicationFollower(
        engine, store, me, run_dir=run_dir, second=engine, on_news=(news if news is not None else []).append
    )


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


async def test_files_on_their_way_are_left_for_those_of_a_newer_version_but_not_twice_in_a_row(
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
    assert not done, "more than half has come"
    share = 0.4
    await looks
    assert news == ["version 1 is not got any further: 2 is there"]
    looks = asyncio.create_task(follower.look())
    await aeventually(lambda: _begun(begun, 1, 2))
    await publish(database, first, version=3)
    done, _ = await asyncio.wait([looks], timeout=0.2)
    assert not done, "otherwise an engine whose files come slowly would never get a version"
    come.set()
    await looks
    assert follower.version == 2
    await engine.close()


async def _begun(begun: list[int], *versions: int) -> bool:
    return begun == list(versions)


async def test_weights_that_do_not_agree_are_refused_once_with_the_reason(
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


async def test_version_whose_files_do_not_come_is_tried_again_and_one_with_a_damaged_list_is_refused(
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
    # Told again, after an answer that was lost, it is there once.
    await store.served(1, "engine-1.1", second_reported, at=passed[1].at)
    assert len((await document(database, 1))["canary"]) == 2
    page = await lists.page(store._database, "Publication", filter="canary_largest > 0.0004")
    assert [row["canary_largest"] for row in page.rows] == [second_reported.largest]


async def test_at_most_half_of_the_engines_update_at_once(
    store: StoredPublications, database: Database, first: Weights
) -> None:
    await publish(database, first)
    for number in range(4):
        await store.report(service_of(number, state="serving"))
    granted = await asyncio.gather(*(store.permit(1, f"engine-{number}.1") for number in range(4)))
    assert sum(granted) == 2
    holder, other = f"engine-{granted.index(True)}.1", f"engine-{granted.index(False)}.1"
    assert await store.permit(1, holder)
    assert not await store.permit(1, other)
    await store.served(1, holder, None, at=datetime.now(UTC))
    assert await store.permit(1, other)
    # A permit of an engine that died ends by itself.
    await database["Publication"].update_one(
        {"_id": 1}, {"$set": {"permits.$[].until": datetime(2020, 1, 1, tzinfo=UTC)}}
    )
    assert await store.permit(1, "engine-3.1")
    assert len((await document(database, 1))["permits"]) == 1


async def test_permits_count_for_all_versions_until_they_expire(
    store: StoredPublications, database: Database, first: Weights, second: Weights
) -> None:
    await publish(database, first)
    for number in range(2):
        await store.report(service_of(number, state="serving"))
    assert await store.permit(1, "engine-0.1")
    (held,) = (await document(database, 1))["permits"]
    assert held["until"] - datetime.now(UTC) > timedelta(seconds=500)
    await publish(database, second)
    assert not await store.permit(2, "engine-1.1"), "none would be left to route to"
    # What has not served yet was not routed to; what is silent is dead.
    await database["Service"].update_one({"_id": "engine-0.1"}, {"$set": {"state": "starting"}})
    assert await store.permit(2, "engine-1.1")
    await store.served(2, "engine-1.1", None, at=datetime.now(UTC))
    await database["Service"].update_one({"_id": "engine-0.1"}, {"$set": {"state": "loading"}})
    assert await store.permit(1, "engine-0.1")
    assert not await store.permit(2, "engine-1.1")
    long_ago = datetime.now(UTC) - timedelta(seconds=61)
    await database["Service"].update_one({"_id": "engine-0.1"}, {"$set": {"seen_at": long_ago}})
    assert await store.permit(2, "engine-1.1")


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
    answer = await engine.generate("r", [4, 5], greedy, deadline_s=20, version=1)
    assert answer.ids == first.greedy([4, 5], 5)
    assert (await database["Service"].find_one({"_id": "engine-0.1"}))["versions_loaded"] == [1, 2]
    await database["Task"].update_one({"_id": "e/test/0/0"}, {"$set": {"status": "done"}})
    await follower.look()
    await follower.look_for_pins()
    assert (await engine.load()).versions_loaded == (2,)
    # It may be requested before there are tasks, and after the engine has a newer version.
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
    # It counts for no other engine's permit, and needs none.
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


class OneVersion:
    """An engine that holds one version and cannot serve while it loads; the test decides how it loads."""

    agreement: Agreement | None = None

    def __init__(self) -> None:
        self.version: int | None = None
        self.begin = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        self.begin.set()
        await self.go_on.wait()
        self.version = version

    async def load(self) -> Load:
        return Load(version=self.version)


def lone_follower(
    engine: OneVersion, store: StoredPublications, run_dir: Path, serving: list[str], slot: int = 0, **options: Any
) -> PublicationFollower:
    me = service_of(slot)
    return PublicationFollower(
        engine, store, me, run_dir=run_dir, evaluates=slot == 0, on_serving=serving.append, **options
    )


async def test_an_engine_of_one_version_leaves_routing_before_it_loads(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    engine, serving = OneVersion(), list[str]()
    follower = lone_follower(engine, store, run_dir, serving)
    await publish(database, first)
    await follower.look()
    engine.begin.clear()
    engine.go_on.clear()
    await publish(database, second)
    look = asyncio.create_task(follower.look())
    await engine.begin.wait()
    service = await database["Service"].find_one({"_id": "engine-0.1"})
    assert (service["state"], service["version"]) == ("loading", 1)
    engine.go_on.set()
    await look
    service = await database["Service"].find_one({"_id": "engine-0.1"})
    assert (service["state"], service["version"]) == ("serving", 2)
    assert serving == ["loading(v1)", "serving(v1)", "loading(v1→v2)", "serving(v2)"]


async def test_an_engine_of_one_version_serves_an_evaluation_and_then_the_newest_again(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    pullers = [lone_follower(OneVersion(), store, run_dir, [], slot) for slot in range(2)]

    async def look() -> list[int | None]:
        for follower in pullers:
            await follower.look_for_pins()
            await follower.look()
        return [follower.version for follower in pullers]

    await publish(database, first)
    await publish(database, second, evaluation=None)
    assert await look() == [2, 2]
    await database["Publication"].update_one({"_id": 1}, {"$set": {"status": "retained", "evaluation": "wanted"}})
    assert await look() == [1, 2]
    assert await look() == [1, 2]
    await database["Publication"].update_one({"_id": 1}, {"$set": {"evaluation": "done"}})
    assert await look() == [2, 2]


async def test_an_engine_whose_load_does_not_end_dies(
    store: StoredPublications, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    """The other engines continue: its permit expires, and its replacement starts from the beginning."""
    stuck, sound = OneVersion(), OneVersion()
    stuck.go_on.clear()
    await publish(database, first)
    await publish(database, second)
    following = asyncio.create_task(lone_follower(stuck, store, run_dir, [], load_within_s=0.5).follow())
    await stuck.begin.wait()
    await aeventually(following.done)
    with pytest.raises(ExceptionGroup) as ended:
        following.result()
    assert "Version 2 was not loaded within 0.5 s" in str(ended.value.exceptions[0])
    follower = lone_follower(sound, store, run_dir, [], slot=1)
    await follower.look()
    assert follower.version == 2


class Away:
    """A store that fails until the test allows it; an engine that only counts."""

    agreement: Agreement | None = None

    def __init__(self) -> None:
        self.away = False
        self.reported: list[tuple[str, int]] = []
        self.updates = 0
        self.gone = False

    async def newest(self, than: int | None, *, but: Collection[int] = ()) -> Announced | None:
        self._check()
        return None if than == 5 else Announced(version=5, path="weights/v5", manifest=Manifest({}))

    async def pinned(self) -> Announced | None:
        self._check()
        return None

    async def permit(self, version: int, engine: str) -> bool:
        self._check()
        self.away = True
        return True

    async def served(self, version: int, engine: str, agreement: Agreement | None, *, at: datetime) -> None:
        self._check()
        self.reported.append((engine, version))

    async def refused(self, version: int, engine: str, why: str) -> None:
        raise AssertionError(why)

    async def report(self, service: Service) -> None:
        self._check()

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        self.updates += 1

    async def pin(self, version: int, path: str = "") -> None: ...

    async def unpin(self) -> None: ...

    async def load(self) -> Load:
        if self.gone:
            raise EngineGoneError("The engine does not run.")
        return Load(version=None)

    def _check(self) -> None:
        if self.away:
            raise ConnectionError("the database is away")


async def test_while_the_store_is_away_the_engine_serves_and_reports_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.engines.publication_follower.MAX_WAIT_S", 0.05)
    away = Away()
    follower = follower_of(away, away, tmp_path)
    following = asyncio.create_task(follower.follow())
    await aeventually(lambda: follower.version == 5)
    assert (follower.state, away.reported) == ("serving", [])
    await follower.leave("draining")
    away.away = False
    await aeventually(lambda: away.reported)
    assert (away.reported, away.updates) == ([("engine-0.1", 5)], 1)
    away.gone = True
    await aeventually(following.done)
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        following.result()


def start_engine(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "daemons.engine"], env=environment, stdout=file, stderr=file)


async def test_the_unit_serves_publications_and_leaves_on_drain(
    mongo_url: str, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    state = run_dir / "state"
    (state / "mongo").mkdir(parents=True)
    (state / "mongo" / "url").write_text(mongo_url)
    config = {"name": "test", "engines": {"slots": 4}, "sampling": {"context": 128}}
    (run_dir / "config.json").write_text(json.dumps(config))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")}
    environment |= {"AGENTRL_RUN_DIR": str(run_dir), "AGENTRL_STATE_DIR": str(state), "PYTHONPATH": str(ROOT)}
    process = start_engine(environment, run_dir / "engine.log")
    try:
        await publish(database, first)

        async def service(**wanted: Any) -> Any:
            assert process.poll() is None, (run_dir / "engine.log").read_text()
            return await database["Service"].find_one({"kind": "engine", **wanted})

        found = await aeventually(lambda: service(state="serving", version=1))
        client = HttpEngine(found["url"], http_token(state))
        call = asyncio.create_task(client.generate("r", [4, 5], Sampling(max_new_tokens=100), deadline_s=60))
        await publish(database, second)
        await aeventually(lambda: service(version=2))
        assert (await call).finish == "length"
        damaged = run_dir / "weights" / first.path.name / "model.safetensors"
        damaged.write_bytes(b"\0" * damaged.stat().st_size)
        await publish(database, first, version=3)

        async def reasons() -> Any:
            return (await document(database, 3)).get("reasons")

        await aeventually(reasons)
        greedy = Sampling(max_new_tokens=5, temperature=0.0)
        assert (await client.generate("s", [4, 5], greedy, deadline_s=20)).versions == [(2, 5)]
        await client.close()
        process.send_signal(signal.SIGTERM)
        await aeventually(lambda: process.poll() is not None)
        assert process.returncode == 0, (run_dir / "engine.log").read_text()
        assert (await database["Service"].find_one({"kind": "engine"}))["state"] == "gone"
    finally:
        process.kill()
        process.wait()
