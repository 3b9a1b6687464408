"""Exports of trajectories: every token once, in parts of any size, from where the last one stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from agentrl.client import parquet_files
from agentrl.errors import UsageError
from agentrl.protocol.data_commands import (
    ExportPart,
    ExportRecords,
)
from agentrl.queries import exports
from agentrl.queries.exports import PART_BYTES
from agentrl.queries.published_tokenizer import PublishedTokenizer
from agentrl.store.database import Database
from tests.steward.test_queries import admitted, asked, episode
from tests.store import flow


async def exported(db: Database, after: str = "") -> tuple[list[dict[str, Any]], int]:
    """All lines, and in how many parts they came."""
    data, parts = b"", 0
    part = ExportPart(after=after)
    while not part.end:
        part = await asked(db, "export_records", ExportRecords(after=part.after, offset=part.offset))
        assert len(part.data) <= PART_BYTES
        data, parts = data + part.data, parts + 1
    return [json.loads(line) for line in data.splitlines()], parts


async def test_an_export_has_every_token_once_and_goes_on_where_it_stopped(db: Database, tmp_path: Path) -> None:
    await admitted(db, n=2)
    first = await episode(db)
    ((line,), _) = await exported(db)
    assert line["record"]["id"] == first
    ids = [segment["ids"] for segment in line["segments"]]
    assert ids == [[1, 2, 3], [4, 5], [6], [7, 8, 9]]
    assert [segment["trains"] for segment in line["segments"]] == [False] * 4, "its group is not closed"
    assert line["segments"][3]["log_probs"] == [-0.5] * 3
    assert line["segments"][3]["versions"] == [[3, 1], [4, 2]]
    second = await episode(db, score=0.0)
    await flow.groups.close(db, line["task"]["id"], flow.RULE, flow.Actor.SAMPLER)
    (later, _) = await exported(db, after=first)
    assert [one["record"]["id"] for one in later] == [second]
    assert [segment["trains"] for segment in later[0]["segments"]] == [False, True, False, True]
    assert later[0]["advantage"] < 0

    part: ExportPart = await asked(db, "export_records", ExportRecords())
    with parquet_files.ParquetFile(tmp_path / "shop.parquet") as file:
        file.write(part.data)
    rows = parquet.read_table(tmp_path / "shop.parquet").to_pylist()
    assert [(row["id"], row["score"], row["turns"]) for row in rows] == [(first, 1.0, 2), (second, 0.0, 2)]
    assert rows[1]["advantage"] < 0
    assert [segment["ids"] for segment in rows[1]["segments"]] == [segment["ids"] for segment in later[0]["segments"]]
    assert rows[0]["segments"][3]["log_probs"] == [-0.5] * 3
    assert rows[0]["segments"][3]["versions"] == [{"version": 3, "tokens": 1}, {"version": 4, "tokens": 2}]
    assert [(tool["tool"], tool["arguments"], tool["result"]) for tool in rows[0]["tool_calls"]] == [
        ("find", "{}", "42")
    ]
    assert rows[0]["started_at"] <= rows[0]["finished_at"]
    with pytest.raises(UsageError, match="rows cannot be added"):
        parquet_files.ParquetFile(tmp_path / "shop.parquet")


async def test_an_export_stops_after_as_many_as_were_asked_for(db: Database) -> None:
    await admitted(db, n=2)
    first = await episode(db)
    second = await episode(db)
    part: ExportPart = await asked(db, "export_records", ExportRecords(limit=1))
    assert (part.records, part.after, part.end) == (1, first, False)
    part = await asked(db, "export_records", ExportRecords(after=part.after, limit=1))
    assert (part.records, part.after) == (1, second)


async def test_a_trajectory_that_is_longer_than_a_message_comes_whole(db: Database) -> None:
    await admitted(db, n=2)
    long = "é" * PART_BYTES
    await episode(db, tool_result=long)
    await episode(db)
    (lines, parts) = await exported(db)
    assert parts > 2
    assert [line["tool_calls"][0]["result"] for line in lines] == [long, "42"]


class Counting(Database):
    """Counts the queries."""

    finds = 0

    async def find(self, *args: Any, **named: Any) -> list[dict[str, Any]]:
        self.finds += 1
        return await super().find(*args, **named)


async def test_records_of_a_part_are_read_together(db: Database) -> None:
    await admitted(db, n=12)
    names = [await episode(db) for _ in range(12)]
    counting = Counting(db._client, db.name)
    part = await exports.part(counting, PublishedTokenizer(counting, Path("nowhere")), ExportRecords())
    assert [json.loads(line)["record"]["id"] for line in part.data.splitlines()] == names
    assert counting.finds <= 1 + 2 * 4, "the page; then tasks, calls, structures and cut values, twice"


async def test_few_records_are_read_together_until_many_were_short(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []

    async def read(database: Database, rows: Sequence[dict[str, Any]]) -> exports._Batch:
        together.append(len(rows))
        return exports._Batch(rows, {}, {row["id"]: [] for row in rows}, {}, ())

    monkeypatch.setattr(exports, "_read", read)
    rows = [{"id": f"r{number}", "task": "t"} for number in range(40)]
    assert [id async for id, _ in exports._lines(db, None, rows)] == [row["id"] for row in rows]
    assert together == [4, 16, 20]
    short = [row | {"generated_tokens": 100} for row in rows]
    assert [id async for id, _ in exports._lines(db, None, short)] == [row["id"] for row in rows]
    assert together[3:] == [32, 8]
