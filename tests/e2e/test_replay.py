"""Replays by the command line on a real run: coordinator, steward, database and a toolbox with a real server.

No engine runs, so no sampler calls a tool: the test writes the records itself, and knows what each call returned.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol.rows import OperationRow
from agentrl.store.call_writer import CALLS, now
from agentrl.store.database import Database
from tests.e2e.running import Run, running
from tests.e2e.test_data_queries import in_store
from tests.toolbox.conftest import FAULTY
from tests.waiting import eventually

WITHIN_S = 120.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    place = tmp_path_factory.mktemp("replay")
    for made in running(place, f"t-{uuid.uuid4().hex[:8]}", factor=0.3):
        (place / "train.jsonl").write_text('{"query": "what?", "answer": "1"}\n')
        made.config |= {
            "environments": {"shop": {"dataset": "train.jsonl", "tools": ["faulty"]}},
            "tools": {
                "faulty": {
                    "command": [sys.executable, str(FAULTY)],
                    "session": "keyed",
                    # No sandbox, because its calls write lines to files of the test.
                    "sandbox": "none",
                    "effects": {"note": "outside", "search": "pure"},
                }
            },
            "model": {"build": "tiny"},
            "rollout": {"samplers": 1},
            "training": {"frozen": True},
        }
        made.up("--no-wait")
        made.cli("stop", "engine-0", "--now")
        for unit in ("steward-0", "toolbox-0", "sampler-0"):
            made.wait_state(unit, "ready", within_s=WITHIN_S)
        yield made


def recorded(run: Run, *calls: tuple[str, dict[str, Any], str, str]) -> list[str]:
    """Store a record with one tool call a turn: tool, arguments, status and result. Returns the ids."""
    record = f"shop/train/0/{uuid.uuid4().hex[:6]}#r1.s0.a1"
    documents: list[dict[str, Any]] = []
    for turn, (tool, arguments, status, result) in enumerate(calls):
        id = f"{record}/{turn:03d}"
        call = {"id": f"{id}.0", "server": "faulty", "tool": tool, "arguments": arguments, "status": status}
        call |= {"result": result, "error_class": "" if status == "ok" else "infrastructure", "requested_at": now()}
        around = {"_id": id, "record": record, "task": record.partition("#")[0], "turn": turn}
        documents.append(around | {"index": turn, "status": "failed", "tool_calls": [call]})

    async def insert(database: Database) -> None:
        await database.insert_many(CALLS, documents)

    in_store(run, insert)
    return [document["tool_calls"][0]["id"] for document in documents]


def previewed(run: Run, call: str) -> str:
    return " ".join(run.cli("replay", call, "--dry-run")["effect"]["changes"])


def replays(run: Run, *calls: str) -> list[Any]:
    rows = run.cli("replays", "list", "--limit", "1000")["rows"]
    return [row for row in rows if row["call"] in calls]


def test_a_call_is_previewed_replayed_and_shown_with_its_difference(run: Run) -> None:
    echo, other = recorded(
        run, ("echo", {"text": "a"}, "ok", "a"), ("echo", {"text": '{"price": 4}'}, "ok", '{"price": 3}')
    )
    eventually(
        lambda: f"echo of {other} runs again on faulty (faulty 1)" in previewed(run, other),
        within_s=WITHIN_S,
        what="a preview with the version of the server, once that has started",
    )
    assert "1 earlier call of the record rebuilds the session first: echo" in previewed(run, other)
    assert replays(run, other) == []
    done = run.cli("replay", other, "--times", "2", within_s=WITHIN_S)
    assert (done["operation"]["state"], done["operation"]["result"]) == ("succeeded", {"different": 1})
    (row,) = replays(run, other)
    assert (row["verdict"], row["counts"]) == ("different", {"rebuilt": 1, "runs": 2})
    shown = run.cli("replays", "show", row["id"])["document"]
    assert [one["call"] for one in shown["rebuilt"]] == [echo]
    assert shown["runs"][0]["changes"] == [{"path": "$.price", "then": "3", "now": "4"}]
    text = run.raw("replays", "show", row["id"]).stdout
    assert "$.price:" in text
    assert "- 3" in text
    assert "+ 4" in text
    edited = run.cli("replay", echo, "--edit", '{"text": "b"}', within_s=WITHIN_S)
    assert edited["operation"]["lines"][0].endswith("different, with edited arguments")


def test_a_replay_with_effects_outside_needs_the_name_of_its_tool_and_consent(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    (id,) = recorded(run, ("note", {"path": str(path)}, "ok", "noted"))
    code, refused = run.cli("replay", id, check=False)
    assert code == ExitCode.REFUSED
    assert "--allow faulty.note" in refused["error"]["hint"]
    code, refused = run.cli("replay", id, "--allow", "faulty.note", check=False)
    assert code == ExitCode.REFUSED
    assert "faulty.note acts outside of its session" in refused["error"]["message"]
    assert not path.exists()
    done = run.cli("replay", id, "--allow", "faulty.note", "--yes", within_s=WITHIN_S)
    assert done["operation"]["result"] == {"same": 1}
    assert path.read_text().splitlines() == ["begun", "ended"]


UNITS = ("steward-0", "toolbox-0", "sampler-0")


@pytest.mark.parametrize("victims", [("steward-0",), ("toolbox-0",), ("sampler-0", "coordinator"), UNITS], ids=" ".join)
def test_replays_end_once_each_and_never_repeat_effects_outside_whatever_is_killed(
    run: Run, tmp_path: Path, victims: tuple[str, ...]
) -> None:
    for unit in UNITS:
        run.wait_state(unit, "ready", within_s=WITHIN_S)
    until = tmp_path / "go on"
    paths = [tmp_path / f"notes {number}" for number in range(35)]
    calls = [recorded(run, ("note", {"path": str(path), "until": str(until)}, "ok", "noted"))[0] for path in paths]
    safe = recorded(run, *[("echo", {"text": "x"}, "ok", "x")] * 15)
    operation = run.cli("replay", *safe, *calls, "--allow", "faulty.note", "--yes", "--no-wait")["operation"]
    eventually(lambda: any(path.exists() for path in paths), within_s=WITHIN_S, what="a call under way")
    eventually(
        lambda: [each["status"] for each in replays(run, *safe)] == ["judged"] * 15,
        within_s=WITHIN_S,
        what="15 of 50 have ended",
    )
    ended = replays(run, *safe)
    for pid in [run.coordinator_pid() if who == "coordinator" else run.unit_row(who).pid for who in victims]:
        os.kill(pid, signal.SIGKILL)
    until.touch()
    row = eventually(lambda: _ended(run, operation), within_s=WITHIN_S, what="the end of the operation")
    assert row.state == "succeeded"
    assert sum(row.result.values()) == 50
    found = replays(run, *calls, *safe)
    rows = {each["call"]: each for each in found}
    assert len(rows) == len(found) == 50
    assert {each["status"] for each in found} <= {"judged", "failed"}
    for call, path in zip(calls, paths, strict=True):
        begun = path.read_text().splitlines().count("begun") if path.exists() else 0
        assert begun <= 1, f"{call} acted twice outside"
        assert rows[call]["status"] == "failed" or begun == 1
        assert begun == 1 or not {"steward-0", "toolbox-0"}.isdisjoint(victims)
    assert {rows[call]["verdict"] for call in safe} == {"same"}
    assert [rows[each["call"]] for each in ended] == ended, "what had ended is not touched"
    assert not run.cli("accounting")["problems"]


def _ended(run: Run, operation: str) -> OperationRow | None:
    row = run.rows()[f"op/{operation}"]
    assert isinstance(row, OperationRow)
    return row if row.state.ended else None
