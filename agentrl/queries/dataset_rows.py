"""Exports records as rows of a dataset: the task as it was, with the whole conversation as a demonstration.

The reader of datasets takes query, answer and scorer of a row, the reader of demonstrations its messages.

Invariants:
- The messages are decoded from the tokens, so their tokens are those of the episode again.
- If an episode has branches, the messages are those of the last model call and its context.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.chat.template import Template
from agentrl.store import calls, images, lists
from agentrl.store.database import Database, Plain
from agentrl.store.documents import DispatchedSamplingTask, Image
from agentrl.tokens import image_marks
from agentrl.tokens.spans import full_prompts

AT_ONCE = 16
_OTHERS = ("messages", "tools", "functions", "system", "train")
"""Columns of the dataset that would contradict these messages."""


async def lines(
    database: Database, template: Template, records: Sequence[Plain]
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Each record with its row. Records whose calls were pruned have no row."""
    for begin in range(0, len(records), AT_ONCE):
        some = records[begin : begin + AT_ONCE]
        ids = {"$in": sorted({record["task"] for record in some})}
        tasks = {task["_id"]: task for task in await database.find("Task", {"_id": ids}, projection={"shares": 0})}
        answered = await calls.with_tokens(database, [record["id"] for record in some])
        for record in some:
            task, made = tasks.get(record["task"]), answered.get(record["id"])
            row = _row(record, lists.shown(task), made, template) if task is not None and made else None
            if row is not None and image_marks.names_in(*_texts(row)):
                row = await _with_images(database, row)
            yield record["id"], msgspec.json.encode(row) + b"\n" if row is not None else b""


def _row(
    record: Plain, task: Mapping[str, Any], answered: Sequence[DispatchedSamplingTask], template: Template
) -> Plain:
    named = {name: task[name] for name in ("answer", "scorer", "answer_schema", "agent_name") if task.get(name)}
    query = {"role": "user", "content": task["query"]}
    earlier = task.get("earlier") or []
    extra = {name: value for name, value in task.get("extra", {}).items() if name not in _OTHERS}
    return {
        **extra,
        "id": record["id"],
        "query": [*earlier, query] if earlier else task["query"],
        **named,
        "split": "train",
        "messages": messages(answered, template),
    }


def messages(answered: Sequence[DispatchedSamplingTask], template: Template) -> list[Plain]:
    stored = calls.stored_calls(answered)
    last = max(stored)
    ids = [*full_prompts(stored)[last], *stored[last].output]
    found = [(role, text) for role, text in template.messages(ids) if role]
    return [{"role": role, "content": text} for role, text in found]


def _texts(row: Plain) -> list[str]:
    query = row["query"]
    return [query] if isinstance(query, str) else [one["content"] for one in query]


async def _with_images(database: Database, row: Plain) -> Plain:
    """The row with its images as data in messages, so it is complete in itself. Such a row is a task, not a
    demonstration."""
    known = await images.get(database, filter(image_marks.is_stored, image_marks.names_in(*_texts(row))))
    query = row["query"]
    messages = [{"role": "user", "content": query}] if isinstance(query, str) else query
    shown = [{**message, "content": _parts(message["content"], known)} for message in messages]
    return {name: value for name, value in row.items() if name != "messages"} | {"query": shown}


def _parts(text: str, known: Mapping[str, Image]) -> str | list[Plain]:
    if not image_marks.names_in(text):
        return text
    return [
        {"type": "image", "image": f"data:;base64,{base64.b64encode(known[value].data).decode()}"}
        if kind == "image" and value in known
        else {"type": "text", "text": image_marks.words(value) if kind == "image" else value}
        for kind, value in image_marks.pieces(text)
    ]
