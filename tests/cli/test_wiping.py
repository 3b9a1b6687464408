"""Wiping a run: what goes is told in numbers, wants the run's name, and never while something of the run lives."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.client.living import start_ticks
from agentrl.config import paths
from agentrl.errors import ExitCode
from agentrl.store import database
from agentrl.store.binary import find_mongod
from agentrl.store.embedded import Mongod
from agentrl.store.files import prepare
from agentrl.store.wiping import BUILT_MODEL, MADE
from tests.cli.conftest import Shell

CONFIG = {
    "name": "old",
    "model": {"build": "tiny"},
    "environments": {"shop": {"dataset": "train.jsonl"}},
}


@pytest.fixture
def run_dir(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run that is down and has made a kilobyte of everything."""
    monkeypatch.setenv("AGENTRL_HOME", str(shell.home))
    place = shell.home.parent / "run"
    paths.create_run("old", place)
    for name in (*MADE, BUILT_MODEL, "of-mine"):
        (place / name / "below").mkdir(parents=True)
        (place / name / "below" / "file").write_bytes(b"x" * 1024)
    (place / "config.json").write_text(json.dumps(CONFIG))
    return place


def left(place: Path) -> list[str]:
    """Directories that hold something."""
    return sorted(entry.name for entry in place.iterdir() if entry.is_dir() and any(entry.iterdir()))


def test_nothing_goes_without_the_name_of_the_run(shell: Shell, run_dir: Path) -> None:
    said = shell("runs", "wipe", "old", expect=ExitCode.REFUSED)
    assert "no documents and 8 KiB of" in said.err
    assert "--yes-really old" in said.err
    assert shell("runs", "wipe", "old", "--dry-run", "--json").json["tier"] == "destructive"
    assert "says other, but" in shell("runs", "wipe", "old", "--yes-really", "other", expect=ExitCode.USAGE).err
    assert shell("runs", "wipe", "nobody", "--yes-really", "nobody", expect=ExitCode.UNKNOWN)
    assert left(run_dir) == sorted([*MADE, BUILT_MODEL, "of-mine"])


def test_a_run_of_which_something_lives_is_not_wiped(shell: Shell, run_dir: Path) -> None:
    who = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    (paths.state_dir("old") / "coordinator.json").write_text(json.dumps(who))
    said = shell("runs", "wipe", "old", "--yes-really", "old", expect=ExitCode.CONFLICT)
    assert f"coordinator (pid {os.getpid()}) lives" in said.err
    assert left(run_dir) == sorted([*MADE, BUILT_MODEL, "of-mine"])


def test_a_model_that_was_given_stays(shell: Shell, run_dir: Path) -> None:
    given: dict[str, Any] = {**CONFIG, "model": {"path": str(run_dir / BUILT_MODEL)}}
    (run_dir / "config.json").write_text(json.dumps(given))
    shell("runs", "wipe", "old", "--yes-really", "old")
    assert left(run_dir) == [BUILT_MODEL, "of-mine"]


def test_a_wiped_run_has_nothing_left_but_what_it_was_given(shell: Shell, run_dir: Path) -> None:
    """With a database that is down: it is started for the purpose, and ends again."""
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
    said = shell("runs", "wipe", "old", "--yes-really", "old", "--json").json
    assert said["wiped"]["documents"] == {"Record": 12, "Task": 3, "Turn": 40}
    assert said["wiped"]["database_bytes"] > 0
    assert said["wiped"]["files"] == dict.fromkeys([*MADE, BUILT_MODEL], 1024)
    assert left(run_dir) == ["of-mine"]
    assert json.loads((run_dir / "config.json").read_text()) == CONFIG
    assert with_server(count) == []
