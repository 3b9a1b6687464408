"""A database that is killed or stands still while processes write to it. Each test has a server of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pymongo.errors
import pytest

from agentrl.store import accounting, database, indexes
from agentrl.store.database import Database, Driver, StoreUnavailableError
from agentrl.store.documents import Record, load
from agentrl.store.mongod_server import Mongod, ServerDiedError
from tests.store.flow import admit, claim_one, end, queue, sampler
from tests.store.mongod import keep_trying, server_in
from tests.waiting import PATIENCE_S, aeventually, eventually

WRITERS = 8
KILLS = 2
BETWEEN = 60
"""Records that are finished between two kills."""


@dataclass
class Server:
    """A server that can be killed and started again, with the same data and address."""

    mongod: Mongod
    url: str

    def kill(self) -> None:
        os.kill(self.mongod.pid, signal.SIGKILL)

    def start(self) -> None:
        """After a kill."""
        with pytest.raises(ServerDiedError, match="signal 9"):
            eventually(self.mongod.check)
        self.mongod.start()
        assert self.mongod.bring_up(keep_trying=keep_trying)


@pytest.fixture
def server() -> Iterator[Server]:
    directory = TemporaryDirectory(prefix="mongo-", ignore_cleanup_errors=True)
    with directory as root, server_in(Path(root) / "mongo") as (mongod, url):
        yield Server(mongod, url)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


def connected(stack: AsyncExitStack, server: Server, *, within_s: float = 60.0) -> Database:
    made = database.connect(server.url, "run", within_s=within_s)
    stack.push_async_callback(made.close)
    return made


@dataclass
class Writer:
    """A sampler that only claims and finishes. It has its own connection and remembers all acknowledged writes."""

    database: Database
    owner: str
    claimed: list[str] = field(default_factory=list)
    ended: dict[str, float] = field(default_factory=dict)
    """Record -> score."""

    async def work(self) -> None:
        """Work until no record is open. No outage of the database may raise an error here."""
        while (claim := await claim_one(self.database, self.owner)) is not None:
            self.claimed.append(claim.record.id)
            score = float(len(self.ended) % 2)
            assert await end(self.database, claim, score), "the record belongs to this writer"
            self.ended[claim.record.id] = score


async def test_a_database_killed_again_and_again_under_writers_loses_nothing_and_gives_nothing_twice(
    server: Server, stack: AsyncExitStack
) -> None:
    looking = connected(stack, server)
    await indexes.ensure(looking)
    groups = WRITERS * 4
    for task in await queue(looking, groups):
        assert await admit(looking, task, n=8)
    writers = [Writer(connected(stack, server), await sampler(looking, f"sampler-{n}.1")) for n in range(WRITERS)]

    def ended() -> int:
        return sum(len(writer.ended) for writer in writers)

    async with asyncio.timeout(120), asyncio.TaskGroup() as together:
        for writer in writers:
            together.create_task(writer.work(), name=writer.owner)
        for kill in range(1, KILLS + 1):
            await aeventually(lambda enough=kill * BETWEEN: ended() >= enough, what="records end")
            server.kill()
            await asyncio.to_thread(server.start)
            enough = ended() + WRITERS
            await aeventually(lambda enough=enough: ended() > enough, what="writers go on by themselves")

    twice = Counter(record for writer in writers for record in writer.claimed)
    assert set(twice.values()) == {1}
    assert len(twice) == groups * 8
    stored = {record.id: record for record in [load(Record, one) for one in await looking.find("Record", {})]}
    for writer in writers:
        for record, score in writer.ended.items():
            found = stored[record]
            assert (found.status, found.owner, found.score) == ("scored", writer.owner, score)
    assert {record.status for record in stored.values()} == {"scored"}
    assert await looking.count("DBRecordData", {}) == len(stored)
    assert not (await accounting.account(looking)).problems


async def test_server_that_shuts_down_under_writers_is_waited_for(server: Server, stack: AsyncExitStack) -> None:
    looking = connected(stack, server)
    await looking.insert_many("Task", [{"_id": number, "count": 0} for number in range(WRITERS)])
    writes, over = Counter[int](), asyncio.Event()

    async def write(number: int, to: Database) -> None:
        while not over.is_set():
            await to.update_many("Task", {"_id": number}, {"$inc": {"count": 1}})
            writes[number] += 1

    async with asyncio.timeout(120), asyncio.TaskGroup() as together:
        for number in range(WRITERS):
            together.create_task(write(number, connected(stack, server)))
        for _ in range(KILLS):
            enough = writes.total() + BETWEEN
            await aeventually(lambda enough=enough: writes.total() >= enough, what="writes")
            await asyncio.to_thread(server.mongod.stop, within_s=30)
            server.mongod.start()
            await asyncio.to_thread(server.mongod.bring_up, keep_trying=keep_trying)
        over.set()
    stored = {one["_id"]: one["count"] for one in await looking.find("Task", {})}
    assert all(stored[number] >= count for number, count in writes.items())


@pytest.mark.parametrize("code", [91, 11602])
def test_write_that_a_shutdown_keeps_from_being_acknowledged_is_an_outage(code: int) -> None:
    unacknowledged = pymongo.errors.WriteConcernError("Replication is being shut down", code)
    with pytest.raises(StoreUnavailableError), database._our_errors("Task"):
        raise unacknowledged


async def test_a_database_that_stands_still_is_waited_for_and_then_is_an_error_with_a_name(
    server: Server, stack: AsyncExitStack
) -> None:
    patient, hasty = connected(stack, server), connected(stack, server, within_s=3.0)
    await patient.insert_many("Task", [{"_id": "before"}])
    assert await hasty.count("Task", {}) == 1
    os.kill(server.mongod.pid, signal.SIGSTOP)
    try:
        waiting = asyncio.create_task(patient.insert_many("Task", [{"_id": "meanwhile"}]))
        with pytest.raises(StoreUnavailableError, match="MongoDB did not answer"):
            await hasty.count("Task", {})
        assert not waiting.done()
    finally:
        os.kill(server.mongod.pid, signal.SIGCONT)
    await asyncio.wait_for(waiting, 60)
    assert [task["_id"] for task in await patient.find("Task", {}, sort=[("_id", 1)])] == ["before", "meanwhile"]


@pytest.mark.parametrize("driver", ["motor", "pymongo"])
async def test_a_database_that_stands_still_is_left_without_waiting_for_it(server: Server, driver: Driver) -> None:
    leaving = database.connect(server.url, "run", driver=driver, within_s=300.0)
    await leaving.insert_many("Task", [{"_id": "before"}])
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    os.kill(server.mongod.pid, signal.SIGSTOP)
    turning = asyncio.create_task(turn(), name="turn")
    try:
        # Much more than the promised time, and much less than the driver would wait without help.
        async with asyncio.timeout(PATIENCE_S):
            before = turns
            await leaving.close()
    finally:
        turning.cancel()
        os.kill(server.mongod.pid, signal.SIGCONT)
    assert turns > before, "other tasks of the event loop continue"
