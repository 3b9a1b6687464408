"""Writes the documents of a run that trained many records, in which everything agrees."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from agentrl.store.database import Database
from agentrl.store.document_ids import call_id, record_id, step_id, task_id, tool_call_id
from agentrl.store.documents import (
    Baseline,
    DBRecordData,
    DispatchedSamplingTask,
    Epoch,
    ParsedCall,
    Record,
    Share,
    Step,
    Task,
    ToolCall,
    to_bson,
)
from agentrl.store.weight_documents import Lineage, Publication
from agentrl.tokens.binary_format import pack_floats, pack_ids
from agentrl.tokens.spans import Span

N, TASKS_OF_A_STEP, TURNS = 8, 8, 4
OUTPUT, RESULT = 20, 8
"""Tokens of a turn and of a tool result."""
LINEAGE = "trainer-0.1@20261123T000000"
BEGAN = datetime(2026, 11, 23, tzinfo=UTC)


async def write(database: Database, records: int) -> int:
    """Each group has half of its records right. Returns how many records were written, in whole steps."""
    steps = records // (N * TASKS_OF_A_STEP)
    await _insert(database, [Lineage(id=LINEAGE, owner="trainer-0.1", first_step=1, opened_at=BEGAN)])
    await _insert(database, [_publication(version) for version in range(1, steps + 2)])
    rows = steps * TASKS_OF_A_STEP
    await _insert(database, [Epoch(id="shop/train/0", environment="shop", rows=rows, inserted=rows, done=True)])
    for step in range(1, steps + 1):
        places = range((step - 1) * TASKS_OF_A_STEP, step * TASKS_OF_A_STEP)
        tasks = [_task(place, step) for place in places]
        members = [_record(task, seat, step) for task in tasks for seat in range(N)]
        await _insert(database, tasks)
        await _insert(database, members)
        await _insert(database, [_data(record) for record in members])
        await _insert(database, [_call(record, index) for record in members for index in range(TURNS)])
        await _insert(database, [_step(step, tasks, members)])
    return rows * N


async def _insert(database: Database, documents: Sequence[Any]) -> None:
    await database.insert_many(type(documents[0]).__name__, to_bson(documents))


def _publication(version: int) -> Publication:
    parent = version - 1 or None
    return Publication(
        id=version, parent=parent, lineage=LINEAGE, step=version - 1, status="skipped", announced_at=BEGAN
    )


def _right(seat: int) -> bool:
    return seat % 2 == 0


def _task(place: int, step: int) -> Task:
    name = task_id("shop", "train", 0, place)
    at = BEGAN + timedelta(seconds=place)
    return Task(
        id=name,
        environment="shop",
        row=place,
        place=place,
        status="trained",
        n=N,
        query="Price the order: 3 bake, 2 soap and 5 lamp.",
        answer="42",
        admitted_order=place + 1,
        admitted_at=at,
        closed_at=at,
        baseline=Baseline(mean=0.5, std=0.5, valid=N),
        signal=True,
        members=N,
        shares=[Share(record_id(name, 1, seat, 1), 1.0 if _right(seat) else -1.0) for seat in range(N)],
        lineage=LINEAGE,
        step=step,
        trained_count=1,
    )


def _record(task: Task, seat: int, step: int) -> Record:
    at = BEGAN + timedelta(seconds=task.place, milliseconds=seat)
    return Record(
        id=record_id(task.id, 1, seat, 1),
        task=task.id,
        environment="shop",
        seat=seat,
        order=task.admitted_order,
        status="scored",
        owner="sampler-0.1",
        resumable=True,
        outcome="answered",
        outcome_class="policy",
        score=float(_right(seat)),
        oldest_version=step,
        newest_version=step,
        versions=[step],
        generated_tokens=TURNS * OUTPUT,
        turns=TURNS,
        created_at=at,
        started_at=at,
        finished_at=at,
    )


def _data(record: Record) -> DBRecordData:
    spans: list[Span] = []
    for index in range(TURNS):
        prompt = index * (RESULT + OUTPUT)
        spans.append(Span(len(spans) - 1, "environment", index, prompt, RESULT))
        spans.append(Span(len(spans) - 1, "model", index, 0, OUTPUT))
    return DBRecordData(
        id=record.id,
        task=record.task,
        spans=spans,
        trained_tokens=TURNS * OUTPUT,
        oldest_version=record.oldest_version,
        versions=record.versions,
        advantage=1.0 if record.score else -1.0,
    )


def _call(record: Record, index: int) -> DispatchedSamplingTask:
    name = call_id(record.id, index)
    at = record.started_at
    tool = ToolCall(
        id=tool_call_id(name, 0),
        server="shop",
        tool="lookup",
        arguments={"item": "bake"},
        status="ok",
        result="bake costs 7",
        session=record.id,
        requested_at=at,
        done_at=at,
    )
    return DispatchedSamplingTask(
        id=name,
        record=record.id,
        task=record.task,
        turn=index,
        index=index,
        owner=record.owner,
        status="done",
        base=call_id(record.id, index - 1) if index else "",
        base_length=index * (RESULT + OUTPUT),
        prompt=pack_ids(range(RESULT)),
        output=pack_ids(range(OUTPUT)),
        log_probs=pack_floats([-0.5] * OUTPUT),
        versions=[(record.versions[0], OUTPUT)],
        sampling={"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 32, "stop_token_ids": [2], "seed": index},
        finish_reason="stop",
        engine="engine-0.1",
        sent_at=at,
        done_at=at,
        text="<tool_call>lookup(bake)</tool_call>",
        parsed=[ParsedCall(name="lookup", arguments={"item": "bake"})],
        tool_calls=[tool],
        began_at=at,
        over_at=at,
    )


def _step(step: int, tasks: Sequence[Task], members: Sequence[Record]) -> Step:
    return Step(
        id=step_id(LINEAGE, step),
        lineage=LINEAGE,
        step=step,
        status="committed",
        base_version=step,
        tasks=[task.id for task in tasks],
        records=[record.id for record in members],
        bounds={"shop": 2},
        leased_at=BEGAN + timedelta(seconds=step),
        committed_at=BEGAN + timedelta(seconds=step),
    )
