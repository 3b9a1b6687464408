"""Queries of operators about the data plane, through a real coordinator and steward over a real database.

No sampler runs: the test writes the records itself, so it knows the right answers.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from agentrl.errors import ExitCode
from agentrl.store import run_database, update_expressions
from agentrl.store.call_writer import Writer, now
from agentrl.store.claims import Claim
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, ParsedCall, Record, ToolCall, to_bson
from agentrl.tokens.binary_format import pack_floats, pack_ids
from tests.e2e import onscreen
from tests.e2e.running import Run, running
from tests.store import flow
from tests.waiting import eventually

T = TypeVar("T")
ROWS = 12
UNREADABLE = 19


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with database and steward, without samplers, engines and trainer."""
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
        made.sidecar("worker", ["sleep", "1000"])
        made.up("--no-wait")
        made.cli("stop", "engine-0", "--now")
        made.wait_state("steward-0", "ready")
        eventually(lambda run=made: len(run.cli("tasks", "list")["rows"]) == ROWS, what="all tasks")
        eventually(
            lambda run=made: run.cli("records", "list", "--filter", "status=open")["rows"], what="admitted groups"
        )
        yield made


def in_store(run: Run, act: Callable[[Database], Awaitable[T]]) -> T:
    async def opened() -> T:
        database = await run_database.open_database(run_database.configuration(run.dir), run.state_dir)
        try:
            return await act(database)
        finally:
            await database.close()

    return asyncio.run(opened())


async def sampler(database: Database, life: str) -> str:
    """An owner whose lease lasts longer than the test, so it needs no renewal."""
    owner = await flow.sampler(database, life)
    assert await database.update_one(
        "Owner", {"_id": owner}, update_expressions.setting(expires_at=update_expressions.from_now(3600))
    )
    return owner


async def stuck(database: Database) -> Claim:
    """A record that is claimed and waits for a tool."""
    owner = await sampler(database, "sampler-3.7")
    claim = await flow.claim_one(database, owner, resumable=True)
    assert claim is not None
    record = claim.record.id
    call = DispatchedSamplingTask(id=call_id(record, 0), record=record, owner=owner, status="done")
    wanted = ToolCall(id=tool_call_id(call.id, 0), server="search", tool="find", requested_at=now())
    call.tool_calls = [wanted]
    await Writer(database).insert(call)
    return claim


def test_running_record_is_shown_with_its_sampler_and_tool_call(run: Run) -> None:
    claim = in_store(run, stuck)
    page = run.cli("records", "list", "--filter", "status=running", "--sort", "age")
    (row,) = page["rows"]
    assert (row["id"], row["owner"]) == (claim.record.id, "sampler-3.7")
    assert row["doing"]["what"] == "tool call search.find"
    assert row["doing"]["call"] == f"{claim.record.id}/000.0"
    assert row["age_s"] >= 0
    shown = run.raw("records", "list", "--filter", "status=running").stdout
    assert "tool call search.find" in shown
    onscreen.live(run, ("7", "s"), claim.record.id, "running", "tool call search.find")
    found = (f"{claim.record.id}  running", "it has not ended, on sampler-3.7", "search.find", "is requested")
    onscreen.live(run, ("7", "s", "enter"), *found, once="tool call search.find")


def test_pages_together_are_the_whole_list(run: Run) -> None:
    seen: list[str] = []
    after = ""
    while True:
        page = run.cli("tasks", "list", "--sort", "id", "--limit", "5", *(("--after", after) if after else ()))
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
def test_invalid_query_is_refused_with_the_wrong_word(
    run: Run, arguments: tuple[str, ...], code: ExitCode, says: str
) -> None:
    was, document = run.cli("tasks", "list", *arguments, check=False)
    assert was == code, document
    assert says in document["error"]["message"] + document["error"]["hint"]


def test_control_codes_of_model_text_do_not_reach_the_terminal(run: Run) -> None:
    claim = in_store(run, hostile)
    shown = run.raw("records", "show", claim.record.id)
    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr
    assert "turned round" in shown.stdout
    assert "rm -rf" in shown.stdout
    story = run.cli("records", "show", claim.record.id)
    assert story["turns"][0]["text"].startswith("\x1b]0;"), "JSON has the unchanged text"
    assert story["turns"][0]["call"]["versions"] == [[1, 2]]
    tokens = run.cli("records", "show", claim.record.id, "--tokens")
    assert [(each["kind"], each["ids"]) for each in tokens["segments"]] == [("environment", [5]), ("model", [1, 2])]
    assert tokens["segments"][1]["versions"] == [[1, 2]]
    shown = run.raw("records", "show", claim.record.id, "--tokens").stdout
    assert "turn 0: 2 tokens, v1×2" in shown
    assert "not trained" in shown


def test_record_is_written_as_a_page_and_as_a_trace(run: Run) -> None:
    claim = in_store(run, hostile)
    made = run.cli("records", "html", claim.record.id)
    page = (run.file.parent / made["file"]).read_text()
    assert made["bytes"] == len(page.encode())
    assert "turned round\n[red]rm -rf[/red]" in page
    assert "\x1b" not in page
    assert run.cli("records", "html", claim.record.id, check=False)[0] == ExitCode.USAGE, "the file exists"
    shown = run.raw("records", "timeline", claim.record.id, "-o", "one.json")
    assert shown.stdout.startswith("one.json has "), shown.stderr
    trace = json.loads((run.file.parent / "one.json").read_text())
    assert trace["otherData"]["record"] == claim.record.id
    assert run.cli("records", "timeline", "no/such", check=False)[0] == ExitCode.UNKNOWN


async def hostile(database: Database) -> Claim:
    owner = await sampler(database, "sampler-9.1")
    claim = await flow.claim_one(database, owner)
    assert claim is not None
    record, writer = claim.record.id, Writer(database)
    call = DispatchedSamplingTask(id=call_id(record, 0), record=record, owner=owner, prompt=pack_ids([5]))
    call.status, call.output, call.versions = "done", pack_ids([1, 2]), [(1, 2)]
    call.log_probs = pack_floats([-0.5, -0.5])
    text = "\x1b]0;a title\x07\x1b[2J\x1b[31m\u202eturned round\n[red]rm -rf[/red]"
    call.text, call.over_at = text, now()
    await writer.insert(call)
    return claim


def test_unreadable_calls_are_one_line_with_their_count_and_lead_to_the_turn(run: Run) -> None:
    claim = in_store(run, unreadable)
    kinds = run.cli("tools", "errors", "--filter", "status=malformed")
    (kind,) = kinds
    assert (kind["count"], kind["status"], kind["error_class"]) == (UNREADABLE, "malformed", "policy")
    assert kind["message"] == "failed to decode tool call: line # column #"
    assert {sample["record"] for sample in kind["samples"]} == {claim.record.id}
    onscreen.live(run, ("7", "e"), f"{UNREADABLE} ", "malformed", "failed to decode tool")
    turn = ("turn 0", "cannot be read as a call: failed to decode tool call: line 0 ")
    onscreen.live(run, ("7", "e", "enter"), *turn, once="malformed")


async def unreadable(database: Database) -> Claim:
    """A record whose model never closes the bracket of a call."""
    owner = await sampler(database, "sampler-5.1")
    claim = await flow.claim_one(database, owner)
    assert claim is not None
    record, writer = claim.record.id, Writer(database)
    for index in range(UNREADABLE):
        wrong = ParsedCall(error=f"failed to decode tool call: line {index} column 17")
        call = DispatchedSamplingTask(id=call_id(record, index), record=record, owner=owner, status="done")
        call.index = call.turn = index
        call.text, call.parsed, call.over_at = "find(", [wrong], now()
        await writer.insert(call)
    return claim


def test_requeued_task_has_a_new_round_and_an_audit_entry(run: Run) -> None:
    (row, *_) = run.cli("tasks", "list", "--filter", "status=admitted", "--sort", "-id")["rows"]
    would = run.cli("tasks", "requeue", row["id"], "--dry-run")
    assert row["id"] in would["effect"]["changes"][0]
    done = run.cli("tasks", "requeue", row["id"], "--yes", "--note", "wrong tool")
    assert done["operation"]["state"] == "succeeded"
    assert done["operation"]["result"] == {"requeued": 1, "refused": 0}
    shown = run.cli("tasks", "show", row["id"])
    assert (shown["document"]["round"], shown["document"]["reason"]) == (row["round"] + 1, "requeued: wrong tool")
    assert {record["status"] for record in shown["records"] if record["round"] == row["round"]} == {"superseded"}
    (audit,) = [one for one in run.cli("events", "--kind", "audit") if one["operation"] == done["operation"]["id"]]
    assert audit["command"] == "requeue_tasks"
    assert row["id"] in audit["what"]
    assert audit["note"] == "wrong tool"


def test_request_id_is_executed_once_across_steward_restarts(run: Run) -> None:
    (row, *_) = run.cli("tasks", "list", "--filter", "status=admitted", "--sort", "-id")["rows"]
    accepted = run.client.requeue_tasks((row["id"],), request_id="once")
    assert run.client.wait("once", timeout_s=60).state == "succeeded"
    steward = run.unit_row("steward-0")
    run.kill(steward.pid)
    again = run.client.requeue_tasks((row["id"],), request_id="once")
    assert (accepted.duplicate, again.duplicate) == (False, True)
    run.wait_incarnation("steward-0", above=steward.incarnation)
    assert run.cli("tasks", "show", row["id"])["document"]["round"] == row["round"] + 1


def test_dataset_rows_are_added_to_a_live_run(run: Run) -> None:
    file = run.file.parent / "more.jsonl"
    file.write_text('{"query": "what costs item 3?", "answer": "3"}\n{"query": "new", "answer": "4"}\n')
    shown = run.raw("tasks", "add", str(file), "-e", "shop", "--dry-run").stdout
    assert "1 of its prompts are trained on already: more.jsonl line 1 (train.jsonl line 4)" in shown
    assert run.cli("tasks", "add", str(file), "-e", "shop")["operation"]["result"]["tasks"] == 2
    assert len(run.cli("tasks", "list", "--filter", "split=added")["rows"]) == 2
    file.write_text('{"query": "new"}\nnonsense\n')
    code, document = run.cli("tasks", "add", str(file), "-e", "shop", check=False)
    assert (code, "more.jsonl line 2 is no JSON" in document["error"]["message"]) == (ExitCode.CONFIG, True)


def test_unbalanced_account_has_its_own_exit_code(run: Run) -> None:
    balanced = run.cli("accounting")
    assert balanced["balanced"]
    onscreen.live(run, ("7", "A"), "All sums agree.", f"tasks (train): {sum(balanced['tasks']['train'].values())} = ")
    assert sum(balanced["tasks"]["train"].values()) == len(run.cli("tasks", "list", "--limit", "1000")["rows"])
    stray = to_bson(Record(id="nowhere#r1.s0.a1", task="nowhere"))
    in_store(run, lambda database: database.insert_many("Record", [stray]))
    try:
        code, document = run.cli("accounting", check=False)
        assert code == ExitCode.UNBALANCED, document
        assert any(problem["examples"] == ["nowhere#r1.s0.a1"] for problem in document["problems"])
        onscreen.live(run, ("7", "A"), "does not agree: 1 ", "nowhere#r1.s0.a1")
    finally:
        in_store(run, lambda database: database.delete_many("Record", {"_id": stray["_id"]}))


def test_records_of_a_killed_process_are_free_before_its_lease_expires(run: Run) -> None:
    worker = run.unit_row("worker-0")
    life = f"worker-0.{worker.incarnation}"
    claim = in_store(run, lambda database: held_by(database, life))
    run.kill(worker.pid)

    async def handed_over(database: Database) -> bool:
        record = await database.find_one("Record", {"_id": claim.record.id})
        owner = await database.find_one("Owner", {"_id": life})
        assert record is not None
        assert owner is not None
        assert owner["expired"], "the owner is expired although its lease lasts a minute"
        return (record["status"], owner["why"]) == ("open", "its death was confirmed")

    eventually(lambda: in_store(run, handed_over), what="the record free for another")


async def held_by(database: Database, life: str) -> Claim:
    claim = await flow.claim_one(database, await flow.sampler(database, life), resumable=True)
    assert claim is not None
    return claim


def test_query_without_a_steward_is_refused_with_the_reason(run: Run) -> None:
    run.cli("stop", "steward-0")
    try:
        code, document = run.cli("records", "list", check=False)
        assert code == ExitCode.UNAVAILABLE
        assert "steward-0 is stopped: stopped by" in document["error"]["message"]
    finally:
        run.cli("restart", "steward-0")
    assert run.cli("records", "list")["rows"]
