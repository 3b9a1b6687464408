"""Wiping a run: the effect is shown in numbers, needs the run's name as consent, and needs all processes dead."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agentrl.cli.run_removal import sentence
from agentrl.client.run_processes import start_ticks
from agentrl.config import paths
from agentrl.errors import ExitCode
from agentrl.store import database, owners
from agentrl.store.mongod_binary import find_mongod
from agentrl.store.mongod_files import prepare
from agentrl.store.mongod_server import Mongod
from agentrl.store.run_wipe import BUILT_MODEL, MADE
from tests.cli.conftest import Shell

CONFIG = {
    "name": "old",
    "model": {"build": "tiny"},
    "environments": {"shop": {"dataset": "train.jsonl"}},
}


@pytest.fixture
def run_dir(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that is down and has written a kilobyte of each kind of data."""
    monkeypatch.setenv("AGENTRL_HOME", str(shell.home))
    place = shell.home.parent / "run"
    paths.create_run("old", place)
    for name in (*MADE, BUILT_MODEL, "of-mine"):
        (place / name / "below").mkdir(parents=True)
        (place / name / "below" / "file").write_bytes(b"x" * 1024)
    (place / "config.json").write_text(json.dumps(CONFIG))
    return place


def left(place: Path) -> list[str]:
    """Directories that are not empty."""
    return sorted(entry.name for entry in place.iterdir() if entry.is_dir() and any(entry.iterdir()))


def test_wipe_needs_the_name_of_the_run(shell: Shell, run_dir: Path) -> None:
    result = shell("runs", "wipe", "old", expect=ExitCode.REFUSED)
    assert f"no documents and {len(MADE) + 1} KiB of" in result.err
    assert "--yes-really old" in result.err
    assert shell("runs", "wipe", "old", "--dry-run", "--json").json["tier"] == "destructive"
    assert "says other, but" in shell("runs", "wipe", "old", "--yes-really", "other", expect=ExitCode.USAGE).err
    assert shell("runs", "wipe", "nobody", "--yes-really", "nobody", expect=ExitCode.UNKNOWN)
    assert left(run_dir) == sorted([*MADE, BUILT_MODEL, "of-mine"])


def test_wipe_refuses_a_run_with_living_processes(shell: Shell, run_dir: Path) -> None:
    who = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    (paths.state_dir("old") / "coordinator.json").write_text(json.dumps(who))
    result = shell("runs", "wipe", "old", "--yes-really", "old", expect=ExitCode.CONFLICT)
    assert f"coordinator (pid {os.getpid()}) lives" in result.err
    assert left(run_dir) == sorted([*MADE, BUILT_MODEL, "of-mine"])


def test_wipe_works_for_a_run_that_never_trained(shell: Shell, run_dir: Path) -> None:
    (run_dir / "config.json").unlink()
    (paths.state_dir("old") / "mongo").mkdir()
    result = shell("runs", "wipe", "old", "--yes-really", "old", expect=ExitCode.CONFIG)
    assert "config.json, cannot be read" in result.err, "without the file it is unknown which database to wipe"
    (paths.state_dir("old") / "mongo").rmdir()
    shell("runs", "wipe", "old", "--yes-really", "old")
    assert left(run_dir) == [BUILT_MODEL, "of-mine"]


def test_wipe_keeps_a_given_model(shell: Shell, run_dir: Path) -> None:
    given: dict[str, Any] = {**CONFIG, "model": {"path": str(run_dir / BUILT_MODEL)}}
    (run_dir / "config.json").write_text(json.dumps(given))
    shell("runs", "wipe", "old", "--yes-really", "old")
    assert left(run_dir) == [BUILT_MODEL, "of-mine"]


def test_wipe_removes_all_data_and_keeps_given_files(shell: Shell, run_dir: Path) -> None:
    """The database is down: wipe starts it for this and stops it again."""
    files = prepare(paths.state_dir("old") / "mongo")

    def with_server(work: Any) -> Any:
        server = Mongod(find_mongod(), files)
        server.start()
        try:
            assert server.bring_up(keep_trying=lambda seconds: time.sleep(seconds) is None)
            return asyncio.run(work())
        finally:
            server.stop(within_s=20)

    async def fill() -> None:
        opened = database.connect(files.url, "old")
        await opened.insert_many("Task", [{"_id": f"t{number}"} for number in range(3)])
        await opened.insert_many("Record", [{"_id": f"r{number}"} for number in range(12)])
        await opened.insert_many("Turn", [{"_id": f"u{number}"} for number in range(40)])
        await opened.close()

    async def count() -> list[str]:
        opened = database.connect(files.url, "old")
        try:
            return await opened.collections()
        finally:
            await opened.close()

    with_server(fill)
    result = shell("runs", "wipe", "old", "--yes-really", "old", "--json").json
    assert result["wiped"]["documents"] == {"Record": 12, "Task": 3, "Turn": 40}
    assert result["wiped"]["database_bytes"] > 0
    assert result["wiped"]["files"] == dict.fromkeys([*MADE, BUILT_MODEL], 1024)
    assert left(run_dir) == ["of-mine"]
    assert json.loads((run_dir / "config.json").read_text()) == CONFIG
    assert with_server(count) == []


# ---- a database on a shared server ----


@pytest.fixture
async def shared(shell: Shell, run_dir: Path, mongo_url: str) -> AsyncIterator[database.Database]:
    """The database of the run, on a server that it shares with the run `neighbour`."""
    (run_dir / "config.json").write_text(json.dumps({**CONFIG, "mongo": {"url": "env:MY_MONGO_URL"}}))
    shell.env["MY_MONGO_URL"] = mongo_url
    async with opened(mongo_url, "old") as own, opened(mongo_url, "neighbour") as neighbour:
        for each in (own, neighbour):
            await each.insert_many("Task", [{"_id": f"t{number}"} for number in range(3)])
        yield own
        assert await neighbour.count("Task", {}) == 3, "the data of another run stays"
        for each in (own, neighbour):
            await each.drop()


@asynccontextmanager
async def opened(url: str, name: str) -> AsyncIterator[database.Database]:
    one = database.connect(url, name, within_s=20)
    try:
        yield one
    finally:
        await one.close()


async def wiping(shell: Shell, *arguments: str, expect: int = 0, **env: str) -> Any:
    return await asyncio.to_thread(shell, "runs", "wipe", "old", *arguments, "--json", expect=expect, **env)


async def test_wipe_on_a_shared_server_drops_only_the_database_of_the_run(
    shell: Shell, run_dir: Path, shared: database.Database
) -> None:
    refused = await wiping(shell, expect=ExitCode.REFUSED)
    assert "loses 3 tasks (" in refused.json["error"]["message"]
    await wiping(shell, "--yes-really", "neighbour", expect=ExitCode.USAGE)
    assert await shared.count("Task", {}) == 3
    result = await wiping(shell, "--yes-really", "old")
    assert result.json["wiped"]["documents"] == {"Task": 3}
    assert await shared.collections() == []
    assert left(run_dir) == ["of-mine"]
    assert (await wiping(shell, "--yes-really", "old")).json["wiped"]["documents"] == {}, "a second wipe is harmless"


async def test_wipe_on_a_shared_server_refuses_while_another_host_writes(
    shell: Shell, run_dir: Path, shared: database.Database
) -> None:
    lease = owners.Lease(shared, "sampler-0.1", unit="sampler-0", role="sampler")
    await lease.open()
    refused = await wiping(shell, "--yes-really", "old", expect=ExitCode.REFUSED)
    assert "old is in use by sampler-0.1" in refused.json["error"]["message"]
    assert await shared.count("Task", {}) == 3
    assert left(run_dir) == sorted([*MADE, BUILT_MODEL, "of-mine"])
    await lease.close()
    assert (await wiping(shell, "--yes-really", "old")).json["wiped"]["documents"] == {"Owner": 1, "Task": 3}


async def test_wipe_names_a_server_that_refuses_without_its_password(
    shell: Shell, run_dir: Path, shared: database.Database, mongo_url: str
) -> None:
    password = urlsplit(mongo_url).password
    assert password
    refused = await wiping(
        shell, "--yes-really", "old", expect=ExitCode.CONFIG, MY_MONGO_URL=mongo_url.replace(password, "wr0ng")
    )
    assert "does not let this user in" in refused.json["error"]["message"]
    assert "wr0ng" not in refused.out + refused.err
    unset = await wiping(shell, "--yes-really", "old", expect=ExitCode.CONFIG, MY_MONGO_URL="")
    assert "MY_MONGO_URL" in unset.json["error"]["message"]
    assert left(run_dir) == sorted([*MADE, BUILT_MODEL, "of-mine"])
    assert await shared.count("Task", {}) == 3


def test_effect_of_wipe_counts_documents_in_words() -> None:
    found = {"documents": {"Task": 384, "Record": 1, "Turn": 5}, "database_bytes": 2048, "files": {}}
    assert sentence(found) == "loses 384 tasks, 1 record, 5 other documents (2 KiB) and no files"
