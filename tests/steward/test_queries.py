"""What the steward answers, over a real database: stories, and changes that are done once."""

from __future__ import annotations

import json
import platform
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, RefusedError, UnknownNameError, UsageError
from agentrl.filters.sorting import parse_sort, to_mongo_sort
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import Actor
from agentrl.protocol import wire
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_changes import AddTasks, Done, RequeueTasks
from agentrl.protocol.data_commands import (
    ListRows,
    Page,
    ReadImage,
    RecordStory,
    ShowRecord,
    Staleness,
    StalenessReport,
)
from agentrl.protocol.effects import Effect
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.wire import raw
from agentrl.queries import image_parts, staleness
from agentrl.queries.dispatcher import Dispatcher
from agentrl.steward.epochs import Source
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import calls, claims, images, lineages, lists, steps, tasks
from agentrl.store.call_writer import CALLS, Writer, now
from agentrl.store.claims import Ending, Reached
from agentrl.store.database import Database
from agentrl.store.datasets import Row
from agentrl.store.document_ids import call_id, tool_call_id
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask, Task, ToolCall
from agentrl.tokens import image_marks
from agentrl.tokens.binary_format import pack_floats, pack_ids
from agentrl.tokens.spans import Span
from tests.store import flow

SOURCE = Source.of([Row(query="one and one", where="train line 1")], [Row(query="two and two", where="eval line 1")])


def desk(db: Database, run_dir: Path = Path("nowhere")) -> Dispatcher:
    settings = StewardSettings(environments={"shop": EnvironmentSettings()})
    return Dispatcher(db, lambda: settings, {"shop": SOURCE}, run_dir)


async def asked(
    db: Database, name: str, args: Args, *, id: str = "op-1", dry_run: bool = False, run_dir: Path = Path("nowhere")
) -> Any:
    return await desk(db, run_dir).answer(AskUnit("1", id, name, raw(args), dry_run=dry_run))


def test_steward_serves_every_command_that_the_table_gives_to_it(db: Database) -> None:
    made = desk(db)
    served = {spec.name for spec in COMMANDS.values() if spec.served_by == "steward"}
    assert {*made.queries, *made.changes} == served
    assert set(made.changes) == {name for name in served if COMMANDS[name].mutates}


# ---- records ----


async def episode(db: Database, *, text: str = "calls it", tool_result: str = "42", score: float = 1.0) -> str:
    """Two turns of a record, a tool call in the first, as a sampler writes them."""
    owner = await flow.sampler(db)
    claim = await flow.claim_one(db, owner)
    assert claim is not None
    record, task = claim.record.id, claim.task.id
    writer = Writer(db)
    for index, (prompt, output) in enumerate((([1, 2, 3], [4, 5]), ([6], [7, 8, 9]))):
        call = DispatchedSamplingTask(
            id=call_id(record, index),
            record=record,
            task=task,
            turn=index,
            index=index,
            owner=owner,
            base=call_id(record, 0) if index else "",
            base_length=5 if index else 0,
            prompt=pack_ids(prompt),
            sampling={"seed": 2**40},
            sent_at=now(),
        )
        await writer.insert(call)
        call.status, call.finish_reason, call.engine, call.done_at = "done", "stop", "engine-0.1", now()
        call.output, call.log_probs = pack_ids(output), pack_floats([-0.5] * len(output))
        call.versions = [(3, 1), (4, len(output) - 1)]
        call.text, call.over_at = text, now()
        names = ("status", "finish_reason", "engine", "output", "log_probs", "versions", "text", "over_at", "done_at")
        if not index:
            tool = ToolCall(id=tool_call_id(call.id, 0), server="s", tool="find")
            await writer.update(call, (), new=[tool])
            tool.status, tool.result, tool.latency_s = "ok", tool_result, 0.25
            await writer.update(call, (), [tool])
        await writer.update(call, names)
    ending = Ending(outcome=Outcome.ANSWERED, turns=2, generated_tokens=5, oldest_version=3, newest_version=4)
    assert await claims.finish(db, record, owner, ending)
    spans = [Span(-1, "environment", 0, 0, 3), Span(0, "model", 0, 0, 2), Span(1, "environment", 1, 5, 1)]
    spans.append(Span(2, "model", 1, 0, 3))
    data = DBRecordData(id=record, task=task, spans=spans, trained_tokens=5, oldest_version=3, versions=[3, 4])
    assert await claims.score(db, record, owner, score, data)
    return record


async def admitted(db: Database, count: int = 1, n: int = 2) -> list[str]:
    rows = await flow.queue(db, count)
    for task in rows:
        assert await flow.admit(db, task, n=n)
    return [task.id for task in rows]


async def test_a_record_is_told_turn_by_turn(db: Database) -> None:
    await admitted(db)
    record = await episode(db, text="x" * 10_000)
    story: RecordStory = await asked(db, "show_record", ShowRecord(record, chars=100))
    assert story.ending["sentence"] == "answered (policy)"
    assert [turn["index"] for turn in story.turns] == [0, 1]
    first = story.turns[0]
    assert first["call"]["versions"] == [[3, 1], [4, 1]]
    assert (first["call"]["new_prompt_tokens"], first["call"]["output_tokens"]) == (3, 2)
    assert first["call"]["seconds"] >= 0
    assert wire.decode_as(RecordStory, raw(story)).turns[0]["call"]["sampling"] == {"seed": 2**40}
    assert [(tool["tool"], tool["result"], tool["latency_s"]) for tool in first["tool_calls"]] == [("find", "42", 0.25)]
    assert first["tool_calls"][0]["tried_again"] == ""
    assert "9900 characters left out" in first["text"]
    assert len(first["text"]) < 200
    assert [attempt["id"] for attempt in story.attempts] == [record]
    assert story.training["versions"] == [3, 4]
    assert not story.under_way
    later: RecordStory = await asked(db, "show_record", ShowRecord(record, after_turn=0, chars=0))
    assert [turn["index"] for turn in later.turns] == [1]
    assert later.turns[0]["text"] == "x" * 10_000
    some: RecordStory = await asked(db, "show_record", ShowRecord(record, limit=1))
    assert some.more_turns


async def test_page_of_a_record_gets_its_images_in_parts_and_its_staleness(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admitted(db)
    stored = await images.put(db, b"0123456789")
    record = await episode(db, text=f"see {image_marks.mark(stored.id)}")
    parents = {3: None, 4: 3, 5: 4}
    await db.insert_many("Publication", [{"_id": version, "parent": parent} for version, parent in parents.items()])
    task = record.partition("#")[0]
    step = {"_id": "l/1", "status": "committed", "step": 1, "lineage": "l", "base_version": 5}
    await db.insert_many("Step", [step | {"tasks": [task], "records": [record]}])
    story: RecordStory = await asked(db, "show_record", ShowRecord(record, marks=True))
    assert story.turns[0]["text"] == f"see {image_marks.mark(stored.id)}"
    assert story.training["steps"][0]["staleness"] == 2, "its oldest trained token is of version 3"
    without: RecordStory = await asked(db, "show_record", ShowRecord(record))
    assert without.turns[0]["text"] == f"see [image 10 B {stored.id[:12]}]"

    monkeypatch.setattr(image_parts, "PART_BYTES", 4)
    reader = image_parts.ImageParts(db)
    parts = [await reader.part(ReadImage(stored.id))]
    await db.update_one("Image", {"_id": stored.id}, {"$set": {"data": b"9876543210"}})
    parts += [await reader.part(ReadImage(stored.id, offset)) for offset in (4, 8)]
    assert [part.data for part in parts] == [b"0123", b"4567", b"89"], "it is read once"
    assert (await asked(db, "read_image", ReadImage(stored.id, 12))).data == b""
    assert {part.length for part in parts} == {10}
    with pytest.raises(UnknownNameError, match="no stored image"):
        await asked(db, "read_image", ReadImage("0" * 64))


async def test_attempts_of_a_seat_each_have_one_reason_for_their_end(db: Database) -> None:
    (task,) = await admitted(db)
    owner = await flow.sampler(db)
    claim = await flow.claim_one(db, owner)
    assert claim is not None
    await claims.fail(db, claim.record.id, owner, Outcome.EPISODE_TIMEOUT, error="it took 300 s")
    await tasks.open_records(db, await tasks.get(db, task), [(claim.record.seat, 2)])
    story: RecordStory = await asked(db, "show_record", ShowRecord(claim.record.id))
    assert story.ending["sentence"] == "episode_timeout (infrastructure): it took 300 s"
    assert [(one["attempt"], one["status"]) for one in story.attempts] == [(1, "failed"), (2, "open")]
    page: Page = await asked(db, "list_records", ListRows(filter="outcome=episode_timeout"))
    assert [row["id"] for row in page.rows] == [claim.record.id]


# ---- changes ----


async def test_a_task_is_sampled_again_once_per_operation(db: Database) -> None:
    (task,) = await admitted(db)
    await episode(db)
    effect: Effect = await asked(db, "requeue_tasks", RequeueTasks((task,)), dry_run=True)
    assert effect.loses == ("1 record of its round 1 is given up",)
    assert (await tasks.get(db, task)).round == 1, "a preview changes nothing"
    for _ in range(2):
        done: Done = await asked(db, "requeue_tasks", RequeueTasks((task,), note="bad scorer"))
        assert done.result["requeued"] == 1
        again = await tasks.get(db, task)
        assert (again.status, again.round, again.reason) == ("queued", 2, "requeued: bad scorer")
    assert await db.count("Record", {"task": task, "status": "superseded"}) == 2
    await flow.admit(db, again)
    await asked(db, "requeue_tasks", RequeueTasks((task,)), id="op-2")
    assert (await tasks.get(db, task)).round == 3


async def test_what_is_leased_is_refused_with_the_step(db: Database) -> None:
    ready = await flow.ready_tasks(db, 1)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=6)
    leased = await flow.steps.lease(db, flow.step_of(lineage.id, 7, ready))
    assert leased is not None
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="leased by step 7 of"):
            await asked(db, "requeue_tasks", RequeueTasks((ready[0].id,)), dry_run=dry_run)
    with pytest.raises(UnknownNameError, match="There is no task no/such"):
        await asked(db, "requeue_tasks", RequeueTasks(("no/such",)), dry_run=True)


async def test_the_rows_of_a_file_become_tasks_once(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    queries = ("one and one", "two and two", "three and three")
    file.write_text("".join(json.dumps({"query": query, "answer": "?"}) + "\n" for query in queries))
    args = AddTasks("shop", str(file))
    effect: Effect = await asked(db, "add_tasks", args, dry_run=True)
    assert effect.changes[0].startswith("3 tasks of shop")
    assert any("trained on already: more.jsonl line 1 (train line 1)" in note for note in effect.notes)
    assert any("held out for evaluation: more.jsonl line 2 (eval line 1)" in note for note in effect.notes)
    assert await db.count("Task", {}) == 0
    for _ in range(2):
        done: Done = await asked(db, "add_tasks", args)
        assert (done.result["tasks"], done.result["first"]) == (3, "shop/added/0/000000")
    assert await db.count("Task", {"status": "queued"}) == 3
    again: Effect = await asked(db, "add_tasks", args, dry_run=True)
    assert again.empty


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        (AddTasks("shop", "{file}"), ConfigError, "line 2 has no query"),
        (AddTasks("shopp", "{file}"), UnknownNameError, "shopp"),
        (AddTasks("shop", "more.jsonl"), UsageError, "whole path"),
        (
            AddTasks("shop", "/no/such.jsonl"),
            ConfigError,
            f"on {re.escape(platform.node())}, where the steward",
        ),
    ],
)
async def test_a_file_that_cannot_be_added_says_why(
    db: Database, tmp_path: Path, args: AddTasks, error: type[Exception], says: str
) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text('{"query": "a"}\n{"answer": "b"}\n')
    with pytest.raises(error, match=says):
        await asked(db, "add_tasks", AddTasks(args.environment, args.file.replace("{file}", str(file))), dry_run=True)
    assert await db.count("Task", {}) == 0


# ---- indexes ----


@pytest.mark.parametrize(
    ("kind", "filter", "sort"),
    [
        ("Record", {"status": "running"}, [("started_at", 1), ("_id", 1)]),
        ("Record", {"finished_at": {"$ne": None}}, [("finished_at", 1), ("_id", 1)]),
        ("Record", {}, [("_id", 1)]),
        ("Task", {"status": "dead"}, [("_id", 1)]),
        (CALLS, calls.FAILED_TOOLS, None),
        (CALLS, calls.FAILED_TOOLS, [("called_at", -1), ("_id", -1)]),
        (CALLS, calls.WITH_TOOLS, [("called_at", -1), ("_id", -1)]),
        (CALLS, calls.WITH_TOOLS, [("tool_calls.latency_s", -1), ("_id", -1)]),
        (CALLS, {**calls.WITH_TOOLS, "tool_calls.tool": "find"}, [("called_at", -1), ("_id", -1)]),
        (CALLS, {"status": "sent", "record": "r"}, None),
        (CALLS, {"tool_calls.status": {"$in": ["requested", "running"]}, "record": "r"}, None),
        (CALLS, {"failed_at": {"$type": "date", "$gte": now()}}, None),
        (CALLS, {"parsed.error": {"$gt": ""}}, [("done_at", 1)]),
        (CALLS, {"parsed.error": {"$gt": ""}, "done_at": {"$gte": now()}}, [("done_at", 1)]),
    ],
)
async def test_what_operators_ask_stands_on_an_index(
    db: Database, kind: str, filter: dict[str, Any], sort: list[tuple[str, int]] | None
) -> None:
    plan = await flow.explained(db, {"find": kind, "filter": filter, **({"sort": dict(sort)} if sort else {})})
    assert "COLLSCAN" not in str(plan["queryPlanner"]["winningPlan"])
    assert "'SORT'" not in str(plan["queryPlanner"]["winningPlan"])


@pytest.mark.parametrize(
    ("kind", "sort", "filter"),
    [
        *((kind, sort, {}) for kind, sort in lists.NEWEST_FIRST.items() if kind != lists.TOOL_CALLS),
        ("Record", "age", {}),
        ("Record", "-finished_at", {}),
    ],
)
async def test_a_list_that_people_look_at_is_in_the_order_of_an_index(
    db: Database, kind: str, sort: str, filter: dict[str, Any]
) -> None:
    order = to_mongo_sort(parse_sort(sort, lists.FIELDS[kind]))
    plan = await flow.explained(db, {"find": kind, "filter": filter, "sort": dict(order), "limit": 100})
    stages = str(plan["queryPlanner"]["winningPlan"])
    assert "'SORT'" not in stages
    assert "COLLSCAN" not in stages


# ---- staleness ----


def test_short_and_long_records_are_told_apart_by_quarters() -> None:
    records = [(float(seconds), seconds >= 9) for seconds in range(1, 13)]
    parts = staleness.by_quarters(records)
    assert [(part.from_s, part.to_s, part.records, part.dropped) for part in parts] == [
        (1.0, 3.0, 3, 0),
        (4.0, 6.0, 3, 0),
        (7.0, 9.0, 3, 1),
        (10.0, 12.0, 3, 3),
    ]
    assert [part.records for part in staleness.by_quarters(records[:2])] == [1, 1]
    assert staleness.by_quarters([]) == ()


async def test_after_a_return_to_a_checkpoint_the_smallest_version_is_not_the_oldest(db: Database) -> None:
    parents = {1: None, 2: 1, 3: 2, 4: 3, 5: 1}
    await db.insert_many("Publication", [{"_id": version, "parent": parent} for version, parent in parents.items()])
    await admitted(db, n=1)
    owner = await flow.sampler(db)
    claim = await flow.claim_one(db, owner)
    assert claim is not None
    record = claim.record.id
    await Writer(db).progress(
        record, owner, claims.progress(record, owner, Reached(turns=1, generated_tokens=9, versions=[1, 4, 5]))
    )
    report = await asked(db, "staleness", Staleness())
    assert (report.version, report.under_way) == (5, {4: 1})


async def test_ages_and_what_other_bounds_would_void(db: Database) -> None:
    assert (await asked(db, "staleness", Staleness())).version is None
    await db.insert_many("Publication", [{"_id": 1, "parent": None}, *({"_id": n, "parent": n - 1} for n in (2, 3, 4))])
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    assert await lineages.report_plan(db, lineage.id, {"bound": 1})
    [old] = await flow.ready_tasks(db, 1, scores=(0.0, 1.0, 1.0), version=1)
    report = await asked(db, "staleness", Staleness())
    assert isinstance(report, StalenessReport)
    assert (report.version, report.bound, report.ready) == (4, 1, {3: 3})
    assert [(one.bound, one.voids_ready) for one in report.previews] == [(0, 3), (1, 3), (2, 3), (3, 0)]

    # Two of three trained, the third was too old when the batch was made.
    step = flow.step_of(lineage.id, 1, [old])
    assert await steps.lease(db, step) is not None
    assert await steps.commit(db, step.id, {}, records=step.records[:2])
    report = await asked(db, "staleness", Staleness())
    assert report.ready == {}
    assert (sum(part.records for part in report.dropped), sum(part.dropped for part in report.dropped)) == (3, 1)


async def test_long_records_whose_whole_group_was_too_old_are_counted_as_dropped(db: Database) -> None:
    """Of such a group no Step says anything: where the bound starves long tasks, that is how it does."""
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    short, flat, long, thrown_out = await flow.ready_tasks(db, 4, scores=(0.0, 1.0))
    await took(db, short, 1.0)
    for task, seconds in ((flat, 2.0), (long, 90.0), (thrown_out, 80.0)):
        await took(db, task, seconds)
    # One whose advantages say that it would not have trained.
    members = {"_id": {"$in": [share.record for share in flat.shares]}}
    await db.update_many("DBRecordData", members, {"$set": {"advantage": None}})
    for task in (flat, long):
        await tasks.next_round(db, task, Actor.TRAINER, tasks.STALE)
    await tasks.requeue(db, thrown_out.id, "wrong tool")
    assert await dropped(db) == [(90.0, 1), (90.0, 1)], "also while nothing was trained yet"

    await flow.commit(db, lineage.id, 1, [short])
    assert await dropped(db) == [(1.0, 0), (1.0, 0)], "what ended before these steps is none of their time"
    ended = {"$set": {"finished_at": await db.now() + timedelta(seconds=5)}}
    await db.update_many("Record", {"task": long.id}, ended)
    assert await dropped(db) == [(1.0, 0), (1.0, 0), (90.0, 1), (90.0, 1)]


async def took(db: Database, task: Task, seconds: float) -> None:
    await db.update_many("Record", {"task": task.id}, {"$set": {"duration_s": seconds}})


async def dropped(db: Database) -> list[tuple[float, int]]:
    report = await asked(db, "staleness", Staleness())
    assert all(part.records == 1 for part in report.dropped)
    return [(part.to_s, part.dropped) for part in report.dropped]
