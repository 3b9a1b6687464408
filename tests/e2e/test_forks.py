"""Forks on a real run: failed records are repaired, branched and probed while processes are killed, then trained.

Invariants:
- a process is killed when some of the replays or forks have ended and others have not;
- the tools wait for files of the test, so what has ended at that moment does not depend on the speed of the machine.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol.rows import OperationRow
from agentrl.store import calls
from agentrl.store.database import Database
from agentrl.store.documents import DBRecordData, Record, Step, load
from agentrl.tokens.spans import trained_spans
from tests.e2e.running import Run, running
from tests.e2e.test_data_plane_operated import parked
from tests.e2e.test_data_queries import in_store
from tests.toolbox.conftest import FAULTY
from tests.waiting import aeventually, eventually

WITHIN_S = 400.0
TASKS = 10
ENDED = 12
"""Replays that have ended when processes are killed."""
MADE = 5
"""How many of 40 forks are made when processes are killed."""
SHARE = 0.25
"""The most forks among the records of a step and those before."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
LOOP = """
from agentrl.chat.tool_call_parsers import Call
from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop


@register_loop("searcher")
class Searcher(AgentLoop):
    resumable = True

    async def run(self, episode):
        record = episode.recorder.record
        search = Call("search", {"while_down": f"{PLACE}/down", "at_most": f"{PLACE}/at most"})
        name = record.id.replace("/", "-")
        note = Call("note", {"path": f"{PLACE}/notes {name}", "until": f"{PLACE}/go on {record.purpose}"})
        searches = [search] if record.seat == 0 or record.fork else []
        notes = [note] if record.seat == 1 or record.fork else []
        ids = episode.first_prompt()
        for call in (Call("tick"), *searches, *notes, Call("tick")):
            reply = await episode.model(ids, may_be_cut=True)
            results = await episode.call_tools([call])
            ids = [*ids, *reply.ids, *episode.template.tool_results(results, ended=reply.ended)]
        await episode.model(ids, may_be_cut=True)
        return Outcome.ANSWERED if results == ["tick 2"] else Outcome.NO_ANSWER

    async def evaluate_record(self, episode):
        return float(".s0." in episode.record)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    for made in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=0.3):
        rows = [f'{{"query": "what is {number}?", "answer": "1"}}\n' for number in range(TASKS)]
        (tmp_path / "train.jsonl").write_text("".join(rows))
        (tmp_path / "down").touch()
        (tmp_path / "at most").write_text(str(ENDED))
        (tmp_path / "agents.py").write_text(f"PLACE = {str(tmp_path)!r}\n{LOOP}")
        made.config |= {
            "environments": {"shop": {"dataset": "train.jsonl", "tools": ["faulty"], "agent": "searcher"}},
            "tools": {
                "faulty": {
                    "command": [sys.executable, str(FAULTY)],
                    "session": "keyed",
                    "sandbox": "none",
                    "timeout_s": 300,
                    "calls": 200,
                    "effects": {"note": "outside"},
                }
            },
            "model": {"build": "tiny"},
            "sampling": {"n": 2, "max_tokens": 8, "context": 2000},
            "rollout": {"samplers": 1, "concurrency": 128, "code": "agents.py"},
            "training": {"groups": 2, "bound": 100, "intervened_share": SHARE},
        }
        made.up("--no-wait")
        yield made


def rows(run: Run, kind: str, filter: str = "") -> list[dict[str, Any]]:
    wanted = ("--filter", filter) if filter else ()
    found: list[dict[str, Any]] = run.cli(kind, "list", *wanted, "--limit", "1000")["rows"]
    return found


def pids(run: Run, *units: str) -> list[int]:
    """The pids of these units; the name "coordinator" stands for the coordinator."""
    alive = run.units()
    return [run.coordinator_pid() if unit == "coordinator" else alive[unit].pid for unit in units]


def kill(those: Sequence[int]) -> None:
    for pid in those:
        os.kill(pid, signal.SIGKILL)


def result_of(run: Run, operation: str) -> dict[str, Any]:
    def ended() -> OperationRow | None:
        row = run.rows()[f"op/{operation}"]
        assert isinstance(row, OperationRow)
        return row if row.state.ended else None

    row = eventually(ended, within_s=WITHIN_S, what="the end of the operation")
    assert row.state == "succeeded", row
    return dict(row.result)


def replay_and_repair(run: Run, place: Path) -> None:
    """30 records fail, their calls are replayed, and those that work repair; steward and sampler are killed."""
    eventually(lambda: len(rows(run, "records", "seat=0 and status=failed")) == 30, within_s=WITHIN_S, what="failures")
    eventually(lambda: len(list(place.glob("notes *"))) == TASKS, within_s=WITHIN_S, what="the other seats note")
    (place / "down").unlink()
    failed = ("replay", "--filter", "tool=search", "--most", "200", "--then", "fork")
    eventually(
        lambda: run.cli(*failed, "--dry-run", check=False)[0] == 0,
        within_s=WITHIN_S,
        what="the breaker and the steward answer",
    )
    displaces = str(run.cli(*failed, "--dry-run")["effect"]["displaces"])
    assert f"if they work now: {TASKS} records of {TASKS} groups are repaired" in displaces
    parked(run, "trainer")
    victims = pids(run, "steward-0", "sampler-0")
    operation = run.cli(*failed, "--yes", "--no-wait")["operation"]
    eventually(
        lambda: (
            [len(rows(run, "replays", one)) for one in ("verdict=fixed", "status=replaying")] == [ENDED, 30 - ENDED]
        ),
        within_s=WITHIN_S,
        what="some replays have ended, the others are under way",
    )
    kill(victims)
    (place / "at most").unlink()
    assert result_of(run, operation) == {"fixed": 30}


def branch_and_probe(run: Run, replays: Sequence[str]) -> None:
    """Two operations fork each of these replays; steward, sampler, toolbox and coordinator are killed among them."""
    victims = pids(run, "steward-0", "sampler-0", "toolbox-0", "coordinator")

    async def count(database: Database) -> int:
        return await database.count("Task", {"fork.kind": "branch"})

    async def kill_among_forks(database: Database) -> int:
        async def some() -> bool:
            return await count(database) >= MADE

        await aeventually(some, every_s=0.002, what="the first forks")
        kill(victims)
        return await count(database)

    for times in (2, 1):
        run.client.fork_records(replays=tuple(replays), times=times, request_id=f"fork-{times}")
    assert in_store(run, kill_among_forks) < 2 * len(replays), "the steward died before its last fork"
    assert result_of(run, "fork-2") == {"branch": len(replays)}
    assert result_of(run, "fork-1") == {"probe": len(replays)}


class Found(NamedTuple):
    """The contents of the store."""

    records: dict[str, Record]
    steps: list[Step]
    """The steps that count, in order."""
    trained: Counter[tuple[str, int]]
    """How often each generated token trained, by the model call that generated it and its place there."""


async def found(database: Database) -> Found:
    records = {one["_id"]: load(Record, one) for one in await database.find("Record", {})}
    steps = [load(Step, one) for one in await database.find("Step", {"status": "committed"}, sort=[("step", 1)])]
    data = {one["_id"]: load(DBRecordData, one) for one in await database.find("DBRecordData", {})}
    answered = await calls.with_tokens(database, records)
    trained: Counter[tuple[str, int]] = Counter()
    for id in (id for step in steps for id in step.records):
        context = {call.index for call in answered[id] if call.context}
        turns = {call.index: call.turn for call in answered[id]}
        for span in (data[id].spans[index] for index in trained_spans(data[id].spans, context)):
            fork = records[id].fork
            of_base = fork is not None and turns[span.call] < fork.turns + bool(fork.call)
            generated_by = f"{fork.base if fork and of_base else id} {span.call}"
            trained.update((generated_by, span.start + place) for place in range(span.length))
    return Found(records, steps, trained)


def check_lineage(run: Run, records: dict[str, Record]) -> None:
    made = {id: one.fork for id, one in records.items() if one.fork is not None}
    for id, fork in made.items():
        there = id if fork.kind == "repair" else records[id].task
        assert there in records[fork.base].forks
    kinds = {
        id: sorted("repair" if "#" in one else records[f"{one}#r1.s0.a1"].purpose for one in records[id].forks)
        for id in {fork.base for fork in made.values()}
    }
    assert Counter(map(tuple, kinds.values())) == {("repair",): TASKS, ("branch", "probe"): 2 * TASKS}
    assert {records[id].status for id in kinds if kinds[id] == ["repair"]} == {"excluded"}
    for kind in ("repair", "branch"):
        id, fork = next((id, fork) for id, fork in made.items() if fork.kind == kind and records[id].status == "scored")
        assert run.cli("records", "show", id)["record"]["fork"]["base"] == fork.base
        base = run.cli("records", "show", fork.base)["record"]
        assert (id if kind == "repair" else records[id].task) in base["forks"]


def train_and_check(run: Run) -> None:
    run.cli("resume", "trainer")
    eventually(lambda: len(rows(run, "tasks", "status=trained")) == 3 * TASKS, within_s=WITHIN_S, what="trained groups")
    records, steps, trained = in_store(run, found)
    assert set(trained.values()) == {1}, "no token trains twice"
    forks = {id for step in steps for id in step.records if records[id].fork}
    assert {records[id].purpose for id in forks} == {"train", "branch"}
    recent = intervened = 0
    for step in steps:
        assert step.intervened == len(forks.intersection(step.records))
        recent, intervened = recent + len(step.records), intervened + step.intervened
        alone = len(step.records) == step.intervened == 1
        assert alone or intervened <= max(1, SHARE * recent), (step.step, recent, intervened)
    repair = next(id for id in forks if records[id].purpose == "train")
    fork = records[repair].fork
    assert fork is not None
    assert {f"{fork.base} {turn}" for turn in range(2)} <= {call for call, _ in trained}, "its trunk trains in it"
    assert run.cli("records", "show", repair)["training"]["trained_in"]
    assert not run.cli("records", "show", fork.base)["training"]["trained_in"]


def test_each_of_50_forks_is_made_once_whatever_is_killed_and_its_tokens_train_once(run: Run, tmp_path: Path) -> None:
    replay_and_repair(run, tmp_path)
    others = [one["id"] for one in rows(run, "replays", "status=judged")]
    assert len(others) == 2 * TASKS, "only the last attempt of a seat is repaired"
    # The repairs end before the toolbox is killed: a repair that fails as the third attempt would leave its seat empty.
    (tmp_path / "go on train").touch()
    eventually(
        lambda: len(rows(run, "records", "fork=repair and status=scored")) == TASKS, within_s=WITHIN_S, what="repairs"
    )
    branch_and_probe(run, others)
    eventually(
        lambda: len(rows(run, "records", "fork=branch and status=running")) == 6 * TASKS,
        within_s=WITHIN_S,
        what="the other forks are under way",
    )
    kill(pids(run, "sampler-0", "toolbox-0"))
    for purpose in ("branch", "probe"):
        (tmp_path / f"go on {purpose}").touch()
    ended = {"purpose=train and status=ready": 10, "purpose=branch and status=ready": 20}
    ended |= {"purpose=probe and status=done": 20}
    eventually(
        lambda: {filter: len(rows(run, "tasks", filter)) for filter in ended} == ended,
        within_s=WITHIN_S,
        what="all groups are closed",
    )

    assert len(rows(run, "tasks")) == 50, "one task for each branch and each probe"
    assert {one["members"] for one in rows(run, "tasks", "status=ready")} == {2}
    assert len(rows(run, "records", "status=scored")) == 2 * 10 + 2 * 20 + 20, "each seat is filled once"
    assert Counter(one["status"] for one in rows(run, "replays")) == {"forked": 30}
    notes = list(tmp_path.glob("notes *"))
    assert {path.read_text().splitlines().count("begun") for path in notes} == {1}, "no call acts outside twice"
    check_lineage(run, in_store(run, found).records)
    noted = rows(run, "records", "seat=1 and status=scored and purpose=train")[0]["id"]
    code, refused = run.cli("fork", f"{noted}/2", "--dry-run", check=False)
    assert code == ExitCode.REFUSED
    assert "faulty.note acts outside of the session" in refused["error"]["message"]
    train_and_check(run)
    account = run.cli("accounting")
    assert account["balanced"], account["problems"]
