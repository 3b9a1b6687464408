"""The tokens of a record as operators see them: each token once, with its text by the tokenizer of the run, in parts
that fit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.template import Template
from agentrl.chat.tokenizer import Tokenizer
from agentrl.chat.tokenizer_training import build_tokenizer
from agentrl.errors import UnknownNameError
from agentrl.protocol.data_commands import (
    ExportRecords,
    RecordStory,
    RecordTokens,
    ShowRecord,
    TokenPart,
)
from agentrl.store import pruning
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id
from agentrl.store.documents import DispatchedSamplingTask, to_bson
from agentrl.store.weight_documents import Publication
from agentrl.tokens.binary_format import pack_floats, pack_ids
from tests.steward.test_queries import admitted, asked, episode
from tests.store import flow

SAID = "Grüße, 世界! 1 + 22 = 23"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "v1").mkdir()
    build_tokenizer(["what costs item 1?", SAID]).save(str(tmp_path / "v1" / "tokenizer.json"))
    return Tokenizer(tmp_path / "v1")


async def published(db: Database) -> None:
    await db.insert_many(
        "Publication", [to_bson(Publication(id=1, status="current", announced_at=datetime.now(UTC), path="v1"))]
    )


async def tokens(db: Database, run_dir: Path, record: str, **more: Any) -> TokenPart:
    part: TokenPart = await asked(db, "record_tokens", RecordTokens(record, **more), run_dir=run_dir)
    return part


async def branched(db: Database, tokenizer: Tokenizer) -> tuple[str, list[list[int]]]:
    """A record and the outputs of its calls. The second call extends the first; the third begins a new sequence."""
    await admitted(db)
    record = await episode(db)
    for kind in ("DispatchedSamplingTask", "DBRecordData"):
        await db.delete_many(kind, {})
    outputs = [tokenizer.encode(text) for text in (SAID, "item 22", "item 1?")]
    asks = [tokenizer.encode("what costs"), tokenizer.encode("1"), tokenizer.encode("what 界")]
    calls = []
    for index, (prompt, output) in enumerate(zip(asks, outputs, strict=True)):
        call = DispatchedSamplingTask(id=call_id(record, index), record=record, index=index, status="done")
        call.turn, call.over_at = index, None if index == 2 else datetime.now(UTC)
        call.prompt, call.output, call.log_probs = pack_ids(prompt), pack_ids(output), pack_floats([-1.0] * len(output))
        call.versions = [(1, 1), (2, len(output) - 1)]
        if index == 1:
            call.base, call.base_length = call_id(record, 0), len(asks[0]) + len(outputs[0])
        calls.append(call)
    await db.insert_many("DispatchedSamplingTask", [to_bson(call) for call in calls])
    return record, outputs


async def test_a_tree_is_shown_with_its_branches_versions_and_texts(
    db: Database, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    await published(db)
    record, outputs = await branched(db, tokenizer)
    part = await tokens(db, tmp_path, record)
    assert part.next is None
    assert not part.note
    generated = [each for each in part.stretches if each.kind == "model"]
    assert sorted(list(each.ids) for each in generated) == sorted(outputs)
    assert "".join(next(each for each in generated if each.call.endswith("/000")).texts) == SAID
    by_turn = {each.turn: each for each in generated}
    assert set(by_turn) == {0, 1, -1}, "the third call belongs to no turn yet"
    assert by_turn[1].versions == ((1, 1), (2, len(outputs[1]) - 1))
    assert by_turn[0].log_probs == (-1.0,) * len(outputs[0])
    children = [each.parent for each in part.stretches]
    assert max(children.count(parent) for parent in set(children)) == 2, "the common part of the prompts is shown once"
    assert not any(each.trains for each in part.stretches), "it was not scored"


@pytest.mark.parametrize("limit", [1, 3, 7])
async def test_parts_of_any_size_give_the_same_tokens_and_texts(
    db: Database, tmp_path: Path, tokenizer: Tokenizer, limit: int
) -> None:
    await published(db)
    record, _ = await branched(db, tokenizer)
    whole = await tokens(db, tmp_path, record)
    found: dict[int, list[tuple[int, str]]] = {}
    start: int | None = 0
    while start is not None:
        part = await tokens(db, tmp_path, record, start=start, limit=limit)
        assert sum(len(each.ids) for each in part.stretches) <= limit
        for each in part.stretches:
            known = found.setdefault(each.segment, [])
            assert each.offset == len(known)
            known += zip(each.ids, each.texts, strict=True)
        start = part.next
    for each in whole.stretches:
        assert found[each.segment] == list(zip(each.ids, each.texts, strict=True))
    assert sum(map(len, found.values())) == whole.total


async def test_what_trains_is_what_its_group_trains(db: Database, tmp_path: Path) -> None:
    (task,) = await admitted(db, n=2)
    first = await episode(db)
    await episode(db, score=0.0)
    await flow.groups.close(db, task, flow.RULE, flow.Actor.SAMPLER)
    part = await tokens(db, tmp_path, first)
    assert [each.trains for each in part.stretches] == [False, True, False, True]
    assert part.stretches[3].versions == ((3, 1), (4, 2))
    assert part.stretches[0].texts == ()
    assert "no weights were published" in part.note


async def test_a_pruned_record_is_marked_and_exported_without_tokens(db: Database, tmp_path: Path) -> None:
    (task,) = await admitted(db)
    record = await episode(db)
    await pruning.remove_details(db, [task])
    part = await tokens(db, tmp_path, record)
    assert (part.stretches, part.total) == ((), 0)
    assert part.note.startswith("Its tokens were removed")
    export = await asked(db, "export_records", ExportRecords())
    assert b'"segments":[]' in export.data


async def test_a_tokenizer_that_cannot_be_read_leaves_the_ids(db: Database, tmp_path: Path) -> None:
    await published(db)
    await admitted(db)
    part = await tokens(db, tmp_path, await episode(db))
    assert part.stretches[0].ids == (1, 2, 3)
    assert part.note.startswith("There are only ids. The tokenizer")
    with pytest.raises(UnknownNameError):
        await tokens(db, tmp_path, "nobody")


@pytest.mark.parametrize("first", range(12))
def test_pieces_are_the_text_from_anywhere(tokenizer: Tokenizer, first: int) -> None:
    ids = tokenizer.encode(SAID)
    whole = tokenizer.pieces(ids)
    assert "".join(whole) == SAID == tokenizer.decode(ids)
    assert len(whole) == len(ids)
    assert tokenizer.pieces(ids, first) == whole[first:]


async def test_a_message_of_the_loop_is_shown_and_exported(db: Database, tmp_path: Path, tokenizer: Tokenizer) -> None:
    await published(db)
    await admitted(db)
    record = await episode(db)
    prompt = pack_ids(Template(tokenizer).user(SAID))
    await db.update_one("DispatchedSamplingTask", {"_id": call_id(record, 1)}, {"$set": {"prompt": prompt}})
    await db.delete_many("DBRecordData", {})
    for question in (ShowRecord(record), ShowRecord(record, after_turn=0), ShowRecord(record, chars=0)):
        story: RecordStory = await asked(db, "show_record", question, run_dir=tmp_path)
        assert story.turns[-1]["from_loop"] == [{"role": "user", "text": SAID}]
    cut: RecordStory = await asked(db, "show_record", ShowRecord(record, chars=9), run_dir=tmp_path)
    assert "left out" in cut.turns[-1]["from_loop"][0]["text"]
    export = await asked(db, "export_records", ExportRecords(), run_dir=tmp_path)
    assert [turn["from_loop"] for turn in json.loads(export.data)["turns"]] == [[], [{"role": "user", "text": SAID}]]
