"""What operators ask of the data plane: through the real coordinator, of a real steward over a real database.

Nothing samples here: the test itself is the sampler, so that it knows what the answers must be.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from agentrl.errors import ExitCode
from agentrl.store import access, claims
from agentrl.store.claims import Claim
from agentrl.store.database import Database
from agentrl.store.documents import ToolCall, tool_call_id
from agentrl.store.trajectories import Writer
from tests.e2e.running import Run, running
from tests.store import flow
from tests.waiting import eventually

T = TypeVar("T")
ROWS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A database and a steward; nobody who samples, serves or trains."""
    place = tmp_path_factory.mktemp("queries")
    for made in running(place, f"t-{uuid.uuid4().hex[:8]}"):
        lines = [json.dumps({"query": f"what costs item {number}?", "answer": number}) for number in range(ROWS)]
        (place / "train.jsonl").write_text("\n".join(lines))
        made.config |= {
            "environments": {"shop": {"dataset": "train.jsonl"}},
            "model": {"build": "tiny"},
            "sampling": {"n": 2},
            "rollout": {"samplers": 0, "max_in_flight": 8},
            "training": {"frozen": True},
        }
        made.up("--no-wait")
        made.cli("stop", "engine-0", "--now")
        made.wait_state("steward-0", "ready")
        yield made


def in_store(run: Run, act: Callable[[Database], Awaitable[T]]) -> T:
    async def opened() -> T:
        database = access.open_database(access.configuration(run.dir), run.state_dir)
        try:
            return await act(database)
        finally:
            await database.close()

    return asyncio.run(opened())


async def stuck(database: Database) -> Claim:
    """A record that is claimed and waits for a tool."""
    owner = await flow.sampler(database, "sampler-3.7")
    claim = await claims.claim(database, owner, resumable=True)
    assert claim is not None
    record = claim.record.id
    call = ToolCall(id=tool_call_id(record, 0, 0), record=record, owner=owner, server="search", tool="find")
    await Writer(database).requested(call)
    return claim


def test_which_record_is_stuck_on_which_sampler_in_which_call(run: Run) -> None:
    eventually(lambda: run.cli("records", "list", "--filter", "status=open")["rows"], what="admitted groups")
    claim = in_store(run, stuck)
    page = run.cli("records", "list", "--filter", "status=running", "--sort", "age")
    (row,) = page["rows"]
    assert (row["id"], row["owner"]) == (claim.record.id, "sampler-3.7")
    assert row["doing"]["what"] == "tool call search.find"
    assert row["doing"]["call"] == f"{claim.record.id}/t0.0"
    assert row["age_s"] >= 0
    shown = run.raw("records", "list", "--filter", "status=running").stdout
    assert "tool call search.find" in shown


def test_pages_put_together_are_the_whole_list(run: Run) -> None:
    eventually(lambda: len(run.cli("tasks", "list")["rows"]) == ROWS, what="all tasks")
    seen: list[str] = []
    after = ""
    while True:
        page = run.cli("tasks", "list", "--limit", "5", *(("--after", after) if after else ()))
        seen += [row["id"] for row in page["rows"]]
        after = page["after"]
        if not after:
            break
    assert seen == [f"shop/train/0/{number:06d}" for number in range(ROWS)]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--filter", "statsu=open"), ExitCode.USAGE, "did you mean 'status'"),
        (("--sort", "servers"), ExitCode.USAGE, "has no order"),
        (("--after", "no/such"), ExitCode.UNKNOWN, "no/such"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_the_place(
    run: Run, arguments: tuple[str, ...], code: ExitCode, says: str
) -> None:
    was, document = run.cli("tasks", "list", *arguments, check=False)
    assert was == code, document
    assert says in document["error"]["message"] + document["error"]["hint"]


def test_without_a_steward_it_is_said_at_once_what_became_of_it(run: Run) -> None:
    run.cli("stop", "steward-0")
    try:
        code, document = run.cli("records", "list", check=False, within_s=10)
        assert code == ExitCode.UNAVAILABLE
        assert "steward-0 is stopped: stopped by" in document["error"]["message"]
    finally:
        run.cli("restart", "steward-0")
    assert run.cli("records", "list")["rows"]
