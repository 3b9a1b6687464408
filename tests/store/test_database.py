"""The seam to the driver: one contract for both clients, and errors in our own words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymongo.errors
import pytest
from pymongo import IndexModel, InsertOne, UpdateOne
from pymongo.errors import OperationFailure

from agentrl.config.serialization import config_from_plain
from agentrl.errors import ConfigError
from agentrl.store import database, indexes, owners, run_database, update_expressions
from agentrl.store.database import (
    KEYS_NOT_READ,
    AlreadyThereError,
    Database,
    Driver,
    StoreError,
    StoreUnavailableError,
)
from tests.store.flow import explained
from tests.store.server import empty_database


@pytest.fixture(params=["motor", "pymongo"])
async def either(mongo_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    driver: Driver = request.param
    async with empty_database(mongo_url, driver=driver) as opened:
        yield opened


async def test_what_is_inserted_is_found(either: Database) -> None:
    documents = [{"_id": f"t{number}", "n": number, "data": b"\x00\x01"} for number in range(5)]
    await either.insert_many("Turn", documents)
    assert await either.find_one("Turn", {"_id": "t3"}) == documents[3]
    assert await either.find_one("Turn", {"_id": "none"}) is None
    assert await either.find_one("Turn", {}, sort=[("n", -1)], projection=["n"]) == {"_id": "t4", "n": 4}
    found = await either.find("Turn", {"n": {"$gte": 2}}, sort=[("n", -1)], limit=2)
    assert [document["n"] for document in found] == [4, 3]
    assert [document["n"] async for document in either.stream("Turn", {}, sort=[("n", 1)])] == [0, 1, 2, 3, 4]
    assert await either.count("Turn", {"n": {"$lt": 2}}) == 2
    assert sorted(await either.distinct("Turn", "n", {"n": {"$gt": 2}})) == [3, 4]
    assert await either.aggregate("Turn", [{"$group": {"_id": None, "sum": {"$sum": "$n"}}}]) == [
        {"_id": None, "sum": 10}
    ]
    assert await either.delete_many("Turn", {"n": 0}) == 1


async def test_inserting_again(either: Database) -> None:
    documents = [{"_id": f"t{number}"} for number in range(3)]
    await either.insert_many("Turn", documents[:1])
    with pytest.raises(AlreadyThereError):
        await either.insert_many("Turn", documents)
    assert await either.insert_new("Turn", documents) == 2
    assert await either.insert_new("Turn", documents) == 0
    assert await either.insert_new("Turn", []) == 0


async def test_updates_say_whether_they_matched(either: Database) -> None:
    await either.insert_many("Turn", [{"_id": "a", "n": 1}, {"_id": "b", "n": 1}])
    assert await either.update_one("Turn", {"_id": "a", "n": 1}, {"$set": {"n": 1}}), "matched, though nothing changed"
    assert not await either.update_one("Turn", {"_id": "a", "n": 2}, {"$set": {"n": 3}})
    assert await either.update_one("Turn", {"_id": "c"}, {"$set": {"n": 1}}, upsert=True)
    assert await either.update_many("Turn", {"n": 1}, {"$inc": {"n": 1}}) == 3
    after = await either.find_one_and_update("Turn", {"n": 2}, {"$inc": {"n": 1}}, sort=[("_id", -1)])
    assert after == {"_id": "c", "n": 3}
    assert await either.find_one_and_update("Turn", {"n": 99}, {"$set": {"n": 0}}) is None


async def test_batches_are_ordered(either: Database) -> None:
    done = await either.write("Turn", [InsertOne({"_id": "a", "n": 0}), UpdateOne({"_id": "a"}, {"$set": {"n": 5}})])
    assert done == (1, 1)
    assert await either.find_one("Turn", {}) == {"_id": "a", "n": 5}
    assert await either.write("Turn", []) == (0, 0)
    with pytest.raises(AlreadyThereError):
        await either.write("Turn", [InsertOne({"_id": "a"}), InsertOne({"_id": "b"})])
    assert await either.count("Turn", {}) == 1


async def test_times_are_the_servers(either: Database) -> None:
    now = await either.now()
    assert now.tzinfo is not None
    assert abs((now - datetime.now(UTC)).total_seconds()) < 60
    await either.insert_many("Turn", [{"_id": "a"}])
    await either.update_one(
        "Turn", {"_id": "a"}, update_expressions.setting({"text": "$literal"}, at=update_expressions.from_now(60))
    )
    assert await either.count("Turn", {"text": "$literal", **update_expressions.is_past("at")}) == 0
    assert await either.count("Turn", update_expressions.is_older("at", -120)) == 1
    assert await either.count("Turn", update_expressions.is_past("never")) == 0


async def test_an_index_of_another_version_is_replaced(either: Database) -> None:
    for keys in (["a"], ["b", "a"], ["b", "a"]):
        await either.create_indexes("Task", [IndexModel([(key, 1) for key in keys], name="mine")])
    plan = await explained(either, {"find": "Task", "filter": {"b": 1}})
    assert "IXSCAN" in str(plan["queryPlanner"]["winningPlan"])
    await either._database["Task"].drop_index("mine")


async def test_a_refused_operation_is_an_error_of_ours(either: Database) -> None:
    with pytest.raises(StoreError, match="MongoDB refused an operation on Turn"):
        await either.find("Turn", {"$nonsense": 1})
    with pytest.raises(StoreError):
        await either.aggregate("Turn", [{"$nonsense": {}}])


async def test_a_missing_server_is_an_error_within_the_deadline() -> None:
    # Not with both drivers: PyMongo's own, closed while it dials, leaves the socket to the garbage collector.
    nowhere = database.connect("mongodb://127.0.0.1:9/?directConnection=true", "x", within_s=0.3)
    with pytest.raises(StoreUnavailableError, match="MongoDB did not answer"):
        async with asyncio.timeout(60):
            await nowhere.find_one("Turn", {})
    await nowhere.close()


async def test_a_wrong_password_and_a_wrong_url_are_configuration_errors(mongo_url: str) -> None:
    secret = mongo_url.partition("agentrl:")[2].partition("@")[0]
    stranger = database.connect(mongo_url.replace(secret, "wrong"), "x", within_s=20)
    with pytest.raises(ConfigError, match="does not let this user in") as seen:
        await stranger.find_one("Turn", {})
    assert secret not in str(seen.value)
    await stranger.close()
    with pytest.raises(ConfigError, match="cannot be used"):
        database.connect("http://somewhere", "x")


KEYS_ARE_NOT_READ = OperationFailure("No keys found for HMAC that is valid for time", KEYS_NOT_READ)
LOST = pymongo.errors.AutoReconnect("connection closed")

ACTS: dict[str, Callable[[Database], Awaitable[object]]] = {
    "find_one": lambda db: db.find_one("Turn", {}),
    "find": lambda db: db.find("Turn", {}),
    "count_documents": lambda db: db.count("Turn", {}),
    "distinct": lambda db: db.distinct("Turn", "n", {}),
    "insert_many": lambda db: db.insert_many("Turn", [{"_id": "a"}]),
    "update_one": lambda db: db.update_one("Turn", {"_id": "a"}, {"$inc": {"n": 1}}),
    "update_many": lambda db: db.update_many("Turn", {}, {"$set": {"n": 1}}),
    "find_one_and_update": lambda db: db.find_one_and_update("Turn", {}, {"$inc": {"n": 1}}),
    "bulk_write": lambda db: db.write("Turn", [UpdateOne({"_id": "a"}, {"$inc": {"n": 1}})]),
    "delete_many": lambda db: db.delete_many("Turn", {}),
}


class Refusing:
    """A collection that refuses each operation so often, and then hands it on."""

    def __init__(self, real: Any, refusal: Exception, times: int) -> None:
        self._real = real
        self._refusal = refusal
        self.left = times

    def __getattr__(self, name: str) -> Any:
        def asked(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left >= 0:
                raise self._refusal
            return getattr(self._real, name)(*arguments, **options)

        return asked


@pytest.mark.parametrize("name", ACTS)
async def test_an_operation_is_repeated_until_the_server_has_read_its_keys(db: Database, name: str) -> None:
    """This includes writes, because a refused operation had no effect."""
    refusing = db._known["Turn"] = Refusing(db._collection("Turn"), KEYS_ARE_NOT_READ, times=2)
    await ACTS[name](db)
    assert refusing.left < 0


async def test_a_duplicate_after_a_refusal_is_an_outage_and_no_conflict(db: Database) -> None:
    """The driver sent the insert twice: the first answer was lost, and the second answer is a refusal."""
    real = db._collection("Turn")
    await real.insert_many([{"_id": "a"}])
    db._known["Turn"] = Refusing(real, KEYS_ARE_NOT_READ, times=1)
    with pytest.raises(StoreUnavailableError):
        await ACTS["insert_many"](db)
    with pytest.raises(AlreadyThereError):
        await ACTS["insert_many"](db)


async def test_a_write_whose_answer_was_lost_is_not_made_again_here(db: Database) -> None:
    """The driver has done so where it can be sure; here nobody could know whether it was made."""
    db._known["Turn"] = Refusing(db._collection("Turn"), LOST, times=1)
    with pytest.raises(StoreUnavailableError):
        await ACTS["find_one_and_update"](db)


async def test_a_server_that_never_reads_its_keys_is_an_error_within_the_deadline(mongo_url: str) -> None:
    hasty = database.connect(mongo_url, "x", within_s=0.3)
    hasty._known["Turn"] = Refusing(hasty._collection("Turn"), KEYS_ARE_NOT_READ, times=10**6)
    with pytest.raises(StoreUnavailableError, match="has just begun"):
        await hasty.find_one_and_update("Turn", {}, {"$set": {"n": 1}})
    await hasty.close()


async def test_database_of_another_version_is_refused_before_anything_is_written(db: Database) -> None:
    lease = owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler")
    await db.insert_many("Turn", [{"_id": "shop/train/0/000000#r1.s0.a1/t0"}])
    with pytest.raises(ConfigError, match="has documents of version 1, and this program has version 2") as refused:
        await lease.open()
    assert "another `name`" in refused.value.hint
    assert await db.count("Owner", {}) == 0
    await db.delete_many("Turn", {})
    await lease.open()
    assert await db.find_one("Schema", {}) == {"_id": "documents", "version": 2}
    await db.update_one("Schema", {}, {"$set": {"version": 3}})
    with pytest.raises(ConfigError, match="version 3"):
        await lease.open()


async def test_no_unit_opens_a_database_of_another_version(db: Database, mongo_url: str, tmp_path: Path) -> None:
    """Engines and toolboxes write without a lease, so the check belongs to the opening."""
    (tmp_path / "mongo").mkdir()
    (tmp_path / "mongo" / "url").write_text(mongo_url)
    config = config_from_plain({"name": db.name, "dir": str(tmp_path)}, where="the test")
    await (await run_database.open_database(config, tmp_path)).close()
    await db.update_one("Schema", {}, {"$set": {"version": 3}})
    with pytest.raises(ConfigError, match="has documents of version 3"):
        await run_database.open_database(config, tmp_path)
    assert await db.count("Service", {}) == 0


async def test_url_cannot_lower_the_concerns(mongo_url: str) -> None:
    mark = "&" if "?" in mongo_url else "?"
    weak = database.connect(f"{mongo_url}{mark}w=0&journal=false&readPreference=secondary", "weak")
    options = weak._client.options
    assert options.write_concern.document["w"] == "majority"
    assert options.write_concern.document["j"] is True
    assert options.read_preference.name == "Primary"
    await weak.close()


async def test_indexes_of_a_database_of_another_version_are_not_changed(mongo_url: str) -> None:
    old = database.connect(mongo_url, "made-by-another-version")
    try:
        await old.insert_many("Turn", [{"_id": "shop/train/0/000000#r1.s0.a1/t0"}])
        with pytest.raises(ConfigError, match="documents of version 1"):
            await indexes.ensure(old)
        assert await old.collections() == ["Turn"]
    finally:
        await old.drop()
        await old.close()
