"""A run of the release before comes up with its units and its data; a run of a newer release is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.control.persistence import journal_schema
from agentrl.errors import ExitCode
from agentrl.store import accounting, database, schema
from tests.store.mongod import server_in
from tests.upgrade.restored_run import RestoredRun
from tests.waiting import eventually

UP_WITHIN_S = 400.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[RestoredRun]:
    found = RestoredRun(tmp_path)
    try:
        yield found
    finally:
        found.run.close()


def test_run_of_the_release_before_comes_up_with_nothing_lost(restored: RestoredRun) -> None:
    run, before = restored.run, restored.documents
    restored.restore_database()
    with restored.living_units() as pids:
        report = run.cli("up", str(run.file), "--yes", within_s=UP_WITHIN_S)
        rows = run.units()
        assert {unit: (rows[unit].pid, rows[unit].incarnation) for unit in pids} == {
            unit: (pid, 1) for unit, pid in pids.items()
        }
        assert set(pids) <= set(report["kept"])
        # The other units ended with their host, and each was started again once.
        assert {row.incarnation for unit, row in rows.items() if unit not in pids} == {2}
        progress = rows["tick-0"].progress
        eventually(lambda: run.unit_row("tick-0").progress > progress, what="a unit of the release before reports")
        tuned = run.cli("tune", "learning_rate")
        assert (tuned["knob"]["value"], len(tuned["history"])) == (0.0002, 1), (
            "the value was tuned under the release before"
        )

        newest = max(step["step"] for step in before["Step"])
        eventually(lambda: committed(run)[-1] > newest, within_s=UP_WITHIN_S, what="steps after those of before")
        run.cli("pause", "trainer")
        now = asyncio.run(documents((run.state_dir / "mongo" / "url").read_text(), run.name))
        for collection in ("Task", "Record", "DBRecordData", "DispatchedSamplingTask", "Step", "Lineage"):
            lost = {one["_id"] for one in before[collection]} - {one["_id"] for one in now[collection]}
            assert not lost, collection
        (checkpoint,) = [one["step"] for one in before["Checkpoint"] if one["status"] == "complete"]
        states = {step["_id"]: step["status"] for step in now["Step"]}
        for step in before["Step"]:
            expected = "committed" if step["step"] <= checkpoint else "rolled_back"
            assert (step["step"], states[step["_id"]]) == (step["step"], expected)
        first_version = max(lineage["first_version"] for lineage in now["Lineage"])
        assert first_version > max(one["_id"] for one in before["Publication"]), "version numbers are never reused"
        assert run.cli("accounting")["balanced"]
        # The new agent handles deaths and commands of these units.
        run.kill(pids["web-0"])
        run.wait_incarnation("web-0", above=1)
        run.cli("restart", "tick-0", "--yes")
        assert run.unit_row("tick-0").incarnation == 2
        run.cli("down", "--yes", check=False, within_s=120)
        assert not run.processes()


def committed(run: Any) -> list[int]:
    found = run.cli("steps", "list", "--filter", "status=committed", "--sort", "step")["rows"]
    return [step["step"] for step in found]


async def documents(url: str, name: str) -> dict[str, Any]:
    opened = database.connect(url, name)
    try:
        found: dict[str, Any] = {each: await opened.find(each, {}) for each in await opened.collections()}
        found["problems"] = (await accounting.account(opened)).problems
        return found
    finally:
        await opened.close()


def test_newer_journal_is_refused_and_its_units_go_on(restored: RestoredRun) -> None:
    run = restored.run
    with restored.living_units() as pids:
        version = journal_schema.SCHEMA_VERSION + 1
        with sqlite3.connect(restored.journal) as db:
            db.execute(f"PRAGMA user_version = {version}")
        db.close()
        before = restored.journal.read_bytes()
        done = run.raw("up", str(run.file), "--yes", within_s=UP_WITHIN_S)
        assert done.returncode != 0
        assert f"has schema version {version}; this agentrl reads versions up to {version - 1}" in done.stderr
        assert restored.journal.read_bytes() == before
        assert all(run.alive(pid) for pid in pids.values())


@pytest.mark.parametrize("version", [schema.VERSION - 1, schema.VERSION + 1], ids=["older", "newer"])
def test_database_of_another_version_is_refused_and_unchanged(restored: RestoredRun, version: int) -> None:
    run = restored.run
    restored.documents[schema.COLLECTION][0]["version"] = version
    restored.restore_database()
    code, report = run.cli("up", str(run.file), "--yes", check=False, within_s=UP_WITHIN_S)
    assert code == ExitCode.FAILED
    sentence = f"has documents of version {version}, and this program has version {schema.VERSION}"
    assert sentence in str(report)
    run.cli("down", "--now", "--yes", check=False)
    with server_in(run.state_dir / "mongo") as (_, url):
        now = asyncio.run(documents(url, run.name))
    for collection, found in restored.documents.items():
        assert {str(one["_id"]): one for one in now[collection]} == {str(one["_id"]): one for one in found}, collection
