"""Helpers of the tests of publications: documents of versions, and followers of publications."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentrl.engines.publication_follower import PublicationFollower
from agentrl.store.documents import Service
from tests.engines.conftest import Weights

Database = Any


def service_of(slot: int, **more: Any) -> Service:
    facts = {"unit": f"engine-{slot}", "kind": "engine", "url": "http://127.0.0.1:1", "version": 1}
    return Service(id=f"engine-{slot}.1", **{**facts, **more})


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
