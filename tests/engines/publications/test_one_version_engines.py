"""An engine that holds one version, and one whose store is away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.canary import Agreement
from agentrl.engines.interface import EngineGoneError, Load
from agentrl.engines.manifest import Manifest
from agentrl.engines.publication_follower import Announced, PublicationFollower
from agentrl.engines.publication_store import StoredPublications
from agentrl.store.documents import Service
from tests.engines.conftest import Weights
from tests.engines.publications.parts import Database, follower_of, publish, service_of
from tests.waiting import aeventually


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
    """A store that fails while `away` is set, and at the same time an engine that loads nothing."""

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
