"""Engines update in turn."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from agentrl.engines.publication_store import StoredPublications
from tests.engines.conftest import Weights
from tests.engines.publications.parts import Database, document, publish, service_of


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
    assert not await store.permit(2, "engine-1.1"), "no engine would be left for routing"
    # A permit blocks no other engine while its holder has never served, because it gets no calls, or is silent, thus
    # dead.
    await database["Service"].update_one({"_id": "engine-0.1"}, {"$set": {"state": "starting"}})
    assert await store.permit(2, "engine-1.1")
    await store.served(2, "engine-1.1", None, at=datetime.now(UTC))
    await database["Service"].update_one({"_id": "engine-0.1"}, {"$set": {"state": "loading"}})
    assert await store.permit(1, "engine-0.1")
    assert not await store.permit(2, "engine-1.1")
    long_ago = datetime.now(UTC) - timedelta(seconds=61)
    await database["Service"].update_one({"_id": "engine-0.1"}, {"$set": {"seen_at": long_ago}})
    assert await store.permit(2, "engine-1.1")
