"""The review queue, verdicts, and the dataset of golden records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.template import Template
from agentrl.chat.tokenizer import Tokenizer
from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.errors import UnavailableError
from agentrl.filters.parser import FilterError
from agentrl.policies.outcomes import Outcome
from agentrl.policies.review_queue import RANDOM, Facts, at_random, reasons
from agentrl.protocol.data_changes import Done, ReviewRecords
from agentrl.protocol.data_commands import (
    ExportPart,
    ExportRecords,
    ListReviews,
    ListRows,
    Page,
)
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.wire import raw
from agentrl.queries import dataset_rows, exports
from agentrl.store import datasets, demonstrations
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id
from agentrl.store.documents import DispatchedSamplingTask, to_bson
from agentrl.tokens.binary_format import pack_floats, pack_ids
from agentrl.training.warmup import trajectory_of
from tests.steward.test_queries import asked, desk
from tests.store import flow

TEXTS = ["what costs item 3? <tool_call>lookup(pear)</tool_call> <answer>3</answer> you can look things up: pear"]


async def mark(db: Database, verdict: str, *ids: str, dry_run: bool = False, id: str = "op-1", **args: Any) -> Any:
    wanted = ReviewRecords(ids=ids, verdict=verdict, **args)  # type: ignore[arg-type]
    return await desk(db).answer(AskUnit("1", id, "review_records", raw(wanted), dry_run=dry_run, who="ada"))


async def queue(db: Database, **args: Any) -> dict[str, list[str]]:
    page: Page = await asked(db, "list_reviews", ListReviews(**args))
    return {row["id"]: row["why"] for row in page.rows}


async def listed(db: Database, filter: str) -> list[str]:
    page: Page = await asked(db, "list_records", ListRows(filter=filter))
    return sorted(row["id"] for row in page.rows)


# ---- the rules ----


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"group_mean": 0.125, "group_std": 0.33, "group_members": 8}, "its score 1 is 2.7 deviations from the mean"),
        ({"group_mean": 0.1, "group_std": 0.33, "group_members": 3}, ""),
        ({"outcome": Outcome.NO_ANSWER}, "it has the score 1 without an answer"),
        ({"malformed": True}, "it has the score 1 in spite of malformed calls"),
        ({"outcome": Outcome.TOKEN_LIMIT}, "it was cut off (token_limit)"),
        ({"calls": 6, "failed_calls": 3}, "3 of its 6 tool calls failed"),
        ({"calls": 7, "failed_calls": 3}, ""),
        ({"calls": 2, "failed_calls": 2}, ""),
        ({"generated_tokens": 400, "usual_tokens": 100.0}, "it is 4 times as long as usual: 400 tokens"),
        ({"generated_tokens": 400}, ""),
        ({"score_before": 0.0}, "its score changed from 0 to 1 when it was scored again"),
        ({"score_before": 1.0}, ""),
    ],
)
def test_record_is_suspicious_for_a_reason_with_its_numbers(facts: dict[str, Any], expected: str) -> None:
    found = reasons(Facts(score=1.0, **facts))
    assert len(found) == bool(expected)
    assert all(reason.startswith(expected) for reason in found)


def test_random_choice_stays_the_same() -> None:
    records = [f"r{number}" for number in range(50)]
    assert at_random(records, 5) == at_random(list(reversed(records)), 5)


# ---- the queue ----


async def test_suspicious_records_come_first_and_a_verdict_takes_them_out(db: Database) -> None:
    await flow.ready_tasks(db, 2, scores=(0.0, 1.0, 0.0, 1.0, 0.0, 1.0))
    (odd,) = await listed(db, 'id="shop/train/0/000000#r1.s1.a1"')
    await db.update_many("Record", {"_id": odd}, {"$set": {"outcome": "no_answer", "generated_tokens": 100}})
    found = await queue(db, limit=8)
    assert len(found) == 8
    assert next(iter(found)) == odd
    assert found[odd][0] == "it has the score 1 without an answer"
    assert found[odd][1].startswith("it is 20 times as long as usual: 100 tokens, and 5 are the median")
    assert {tuple(why) for id, why in found.items() if id != odd} == {(RANDOM,)}
    effect: Effect = await mark(db, "bad", odd, dry_run=True)
    assert effect.changes == ("1 record gets the verdict bad",)
    assert odd in await queue(db), "a preview changes nothing"
    done: Done = await mark(db, "bad", odd, note="reads the answer from the file")
    assert done.result == {"reviewed": 1, "refused": 0}
    assert odd not in await queue(db)
    document = await db.find_one("Record", {"_id": odd})
    assert document is not None
    review = document["review"]
    assert (review["verdict"], review["note"], review["who"]) == ("bad", "reads the answer from the file", "ada")
    assert review["at"] is not None
    assert await listed(db, "review=bad and reviewed_by=ada") == [odd]
    assert len(await listed(db, "review=null")) == 11
    with pytest.raises(FilterError):
        await listed(db, "review=goldn")
    effect = await mark(db, "golden", odd, dry_run=True)
    assert effect.notes == ("1 record had the verdict bad by ada",)
    await mark(db, "none", filter="review=bad", id="op-2")
    assert odd in await queue(db)


async def test_score_far_from_its_group_and_failed_calls_are_found(db: Database) -> None:
    await flow.ready_tasks(db, 1, scores=(0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    odd = "shop/train/0/000000#r1.s5.a1"
    calls = [{"id": f"{odd}/000.{n}", "status": status} for n, status in enumerate(("timeout", "lost", "ok", "lost"))]
    await db.insert_many(CALLS, [{"_id": call_id(odd, 0), "record": odd, "tool_calls": calls}])
    assert (await queue(db))[odd] == [
        "its score 1 is 2.2 deviations from the mean 0.1667 of its group",
        "3 of its 4 tool calls failed",
    ]


# ---- the dataset ----


async def golden_episode(db: Database, template: Template) -> tuple[str, list[int]]:
    """A record of two turns with a tool call between them, and all its tokens."""
    (task,) = await flow.ready_tasks(db, 1)
    record = task.shares[0].record
    await db.update_many(
        "Task",
        {"_id": task.id},
        {"$set": {"scorer": "math", "extra": {"difficulty": "hard", "tools": ["never read"]}}},
    )
    prompt = template.first("you can look things up: pear", (), task.query)
    said = template.assistant("<tool_call>lookup(pear)</tool_call>")
    result = template.tool_results(["3", "you can"])
    answer = template.assistant("<answer>3</answer>")
    parts = [(prompt, said, "", 0), (result, answer, call_id(record, 0), len(prompt) + len(said))]
    made = [
        DispatchedSamplingTask(
            id=call_id(record, index),
            record=record,
            task=task.id,
            index=index,
            turn=index,
            status="done",
            base=base,
            base_length=length,
            prompt=pack_ids(new),
            output=pack_ids(output),
            log_probs=pack_floats([-0.5] * len(output)),
        )
        for index, (new, output, base, length) in enumerate(parts)
    ]
    await db.insert_many(CALLS, to_bson(made))
    return record, [*prompt, *said, *result, *answer]


async def test_golden_records_are_read_back_as_a_dataset_and_as_demonstrations(db: Database, tmp_path: Path) -> None:
    build_tiny(tmp_path / "model", TEXTS, seed=1, max_position_embeddings=256)
    template = Template(Tokenizer(tmp_path / "model"))
    record, tokens = await golden_episode(db, template)
    await mark(db, "golden", record)

    class Published:
        async def template(self) -> Template:
            return template

    wanted = ExportRecords(filter="review=golden", form="dataset")
    part: ExportPart = await exports.part(db, Published(), wanted)  # type: ignore[arg-type]
    assert (part.records, part.end) == (1, True)
    file = tmp_path / "golden.jsonl"
    file.write_bytes(part.data)
    (row,) = datasets.read(file)
    assert (row.query, row.answer, row.scorer, row.split, row.id) == (
        "what costs item 0?",
        "0",
        "math",
        "train",
        record,
    )
    assert row.extra["difficulty"] == "hard"
    (one,) = demonstrations.read_demonstrations(file)
    assert [message.role for message in one.messages][:3] == ["system", "user", "assistant"]
    segments = trajectory_of(one, template, record).segments
    assert [id for segment in segments for id in segment.ids] == tokens, "the tokens of the episode"
    with pytest.raises(UnavailableError, match="No tokenizer is published"):
        await asked(db, "export_records", wanted)


async def test_row_of_a_conversation_keeps_its_earlier_messages(db: Database, tmp_path: Path) -> None:
    build_tiny(tmp_path / "model", TEXTS, seed=1, max_position_embeddings=256)
    template = Template(Tokenizer(tmp_path / "model"))
    record, _ = await golden_episode(db, template)
    earlier = [{"role": "system", "content": "be short"}]
    await db.update_many("Task", {}, {"$set": {"earlier": earlier}})
    found = await db.find("Record", {"_id": record})
    lines = [line async for _, line in dataset_rows.lines(db, template, [one | {"id": one["_id"]} for one in found])]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"".join(lines))
    (row,) = datasets.read(file)
    assert (row.query, [message.content for message in row.earlier]) == ("what costs item 0?", ["be short"])
