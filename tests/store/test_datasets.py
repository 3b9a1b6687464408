"""Files of tasks in every format, with every alias; mistakes are named with file and number."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from agentrl.store import datasets
from agentrl.store.datasets import DatasetError, Row, read

ROWS = [
    {"id": "a", "query": "1 + 1?", "answer": 2, "hint": "count"},
    {"id": "b", "query": "1 + 2?", "answer": 3, "hint": "count"},
]


def jsonl(place: Path, rows: list[Any]) -> Path:
    path = place / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def plain_json(place: Path, rows: list[Any]) -> Path:
    path = place / "rows.json"
    path.write_text(json.dumps(rows))
    return path


def nested_json(place: Path, rows: list[Any]) -> Path:
    path = place / "rows.json"
    path.write_text(json.dumps({"version": 1, "data": rows}))
    return path


def parquet(place: Path, rows: list[Any]) -> Path:
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), place / "rows.parquet")
    return place / "rows.parquet"


def parquet_directory(place: Path, rows: list[Any]) -> Path:
    (place / "shards").mkdir()
    for number, row in enumerate(rows):
        pyarrow.parquet.write_table(pa.Table.from_pylist([row]), place / "shards" / f"part-{number:05d}.parquet")
    return place / "shards"


def saved(place: Path, rows: list[Any]) -> Path:
    """The layout of `Dataset.save_to_disk`, as the library writes it."""
    (place / "saved").mkdir()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(place / "saved" / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}
    (place / "saved" / "state.json").write_text(json.dumps(state))
    return place / "saved"


@pytest.mark.parametrize("write", [jsonl, plain_json, nested_json, parquet, parquet_directory, saved])
def test_every_format_gives_the_same_rows(tmp_path: Path, write: Callable[[Path, list[Any]], Path]) -> None:
    rows = read(write(tmp_path, ROWS))
    assert [(row.id, row.query, row.answer, row.extra) for row in rows] == [
        ("a", "1 + 1?", "2", {"hint": "count"}),
        ("b", "1 + 2?", "3", {"hint": "count"}),
    ]
    assert rows[0].where != rows[1].where
    plain = [Row(id=row.id, query=row.query, answer=row.answer, extra={"hint": "count"}) for row in rows]
    assert datasets.digest(rows) == datasets.digest(plain)


def test_rows_that_differ_in_anything_that_a_task_takes_have_another_digest() -> None:
    rows = [
        Row(query="1 + 1?"),
        Row(query="1 + 1?", scorer="exact"),
        Row(query="1 + 1?", answer_schema="number"),
        Row(query="1 + 1?", agent_name="react"),
        Row(query="1 + 1?", extra={"hint": "count", "at": date(2026, 1, 1), "size": 1j}),
        Row(query="1 + 1?", extra={"hint": "guess"}),
    ]
    assert len({datasets.digest([row]) for row in rows}) == len(rows)
    assert datasets.digest([Row(query="1 + 1?", where="here")]) == datasets.digest(rows[:1])


def test_a_dataset_that_the_library_saved_is_read_with_its_splits(tmp_path: Path) -> None:
    library = importlib.import_module("datasets")
    splits = {
        "train": library.Dataset.from_list(ROWS).shuffle(seed=1),
        "test": library.Dataset.from_list([{"id": "c", "query": "2 + 2?", "answer": 4, "hint": None}]),
    }
    library.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    rows = read(tmp_path / "saved")
    assert [(row.split, row.id) for row in rows if row.split == "eval"] == [("eval", "c")]
    assert sorted(row.id for row in rows if row.split == "train") == ["a", "b"]


@pytest.mark.parametrize(
    ("plain", "query", "answer"),
    [
        ({"question": "why?", "expected_answer": "so"}, "why?", "so"),
        ({"prompt": "why?", "ground_truth": 1.0}, "why?", "1"),
        ({"instruction": "why?", "target": ["a", "b"]}, "why?", '["a", "b"]'),
        ({"problem": "why?", "solution": None}, "why?", ""),
        ({"query": "why?", "question": "other"}, "why?", ""),
        (
            {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]},
            "why?",
            "",
        ),
    ],
)
def test_aliases(tmp_path: Path, plain: dict[str, Any], query: str, answer: str) -> None:
    [row] = read(jsonl(tmp_path, [plain]))
    assert (row.query, row.answer) == (query, answer)


def test_a_conversation_is_kept_up_to_the_last_message_of_the_user(tmp_path: Path) -> None:
    roles = ("system", "user", "assistant", "user", "assistant")
    messages = [{"role": role, "content": f"{role} {place}"} for place, role in enumerate(roles)]
    [row] = read(jsonl(tmp_path, [{"prompt": messages}]))
    assert row.query == "user 3"
    assert [(reply.role, reply.content) for reply in row.earlier] == [
        (role, f"{role} {n}") for n, role in enumerate(roles)
    ][:3]
    other = msgspec.structs.replace(row, earlier=row.earlier[:2])
    assert datasets.digest([row]) != datasets.digest([other])
    assert not datasets.leaks([row], [other]), "the same last words of another conversation"


def test_other_fields_of_a_row_are_kept(tmp_path: Path) -> None:
    reply = {"question": "q", "scorer": "math", "answer_schema": "boxed", "agent": "single_turn_agent", "split": "test"}
    [row] = read(jsonl(tmp_path, [reply | {"level": 3, "prompt": "p"}]))
    assert (row.scorer, row.answer_schema, row.agent_name, row.split) == ("math", "boxed", "single_turn_agent", "eval")
    assert row.extra == {"level": 3, "prompt": "p"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"query": "q"}\n{"query": \n', r"rows\.jsonl line 2 is no JSON"),
        ('{"query": "q"}\n\n[1]\n', r"rows\.jsonl line 3 is no object but a list"),
        ('{"query": "q"}\n{"answer": 1}\n', r"rows\.jsonl line 2 has no query: one of query, question"),
        ('{"query": "  "}\n', "line 1: query must be a text that is not empty, and is an empty text"),
        ('{"query": 5}\n', "line 1: query must be a text that is not empty, and is a number"),
        ('{"messages": [{"role": "system", "content": "x"}]}\n', "line 1: messages has no message of the user"),
        (
            '{"messages": [{"role": "tool", "content": "x"}, {"role": "user", "content": "y"}]}\n',
            "line 1: messages may have .* number 1 is of 'tool'",
        ),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}]}\n',
            "line 1: number 1 of messages has an image 'a.png', and there is no file .*/a.png",
        ),
        (
            '{"messages": [{"role": "user", "content": ["x"]}, {"role": "user", "content": "y"}]}\n',
            "line 1: number 1 of messages has a part of the type None; known are text, image and image_url",
        ),
        ('{"messages": ["x"]}\n', "line 1: messages must be a text or messages"),
        ('{"query": "q", "scorer": 4}\n', "line 1: scorer must be a name, and is a number"),
        (
            '{"query": "q", "answer_schema": "<a>"}\n',
            "line 1: answer_schema is '<a>'; it must be boxed, or a tag's name",
        ),
        ('{"query": "q", "split": "tset"}\n', "line 1 is in the split 'tset'"),
        ('{"query": "q", "id": 1}\n{"query": "r", "id": 1}\n', "line 2 has the id '1', which .* line 1 has already"),
        ("\n", "has no rows"),
    ],
)
def test_mistakes_are_named_with_path_and_number(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(DatasetError, match=says) as seen:
        read(path)
    assert seen.value.message.startswith(f"{path} "), "the error names the place of the mistake"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rows.csv", b"a,b", "unknown kind"),
        ("rows.json", b"{", "is no JSON"),
        ("rows.json", b'{"a": [1], "b": [2]}', "an object with 2 lists"),
        ("rows.json", b"4", "no list of rows"),
        ("rows.parquet", b"not parquet", "is no Parquet file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=says) as seen:
        read(tmp_path / name)
    assert seen.value.message.startswith(f"{tmp_path / name} ")


def test_directories_that_are_no_datasets(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is no dataset"):
        read(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(DatasetError, match="does not describe"):
        read(tmp_path)
    with pytest.raises(DatasetError, match="There is no dataset"):
        read(tmp_path / "nowhere")


def test_a_prompt_in_two_splits_is_reported() -> None:
    train = [
        Row(query="what  is\n1 + 1?", where="/data/train.jsonl line 4"),
        Row(query="other"),
    ]
    held_out = [Row(query="what is 1 + 1?", where="eval.jsonl line 9"), Row(query="new", where="eval.jsonl line 10")]
    [leak] = datasets.leaks(train, held_out)
    assert leak.sentence() == (
        "eval.jsonl line 9 is held out, and train.jsonl line 4 trains on the same prompt: 'what is 1 + 1?'"
    )


def test_the_order_of_an_epoch_depends_on_its_number_alone() -> None:
    first = datasets.order(50, shuffle=7, epoch=0)
    assert first == datasets.order(50, shuffle=7, epoch=0)
    assert first != datasets.order(50, shuffle=7, epoch=1)
    assert first != datasets.order(50, shuffle=8, epoch=0)
    assert sorted(first) == list(range(50))


def test_a_row_that_no_document_holds_is_named_before_anything_is_stored(tmp_path: Path) -> None:
    large = {"query": "x" * datasets.LARGEST_ROW, "answer": "3"}
    place = jsonl(tmp_path, [{"query": "1 and 2", "answer": "3"}, large])
    with pytest.raises(DatasetError, match=r"line 2 is too large: \d+ bytes, and a row may have 4194304"):
        datasets.read(place)


def test_half_a_character_does_not_keep_a_row_from_being_read(tmp_path: Path) -> None:
    assert len(datasets.read(jsonl(tmp_path, [{"query": "a\ud800b", "answer": "3"}]))) == 1


def test_of_a_large_file_the_first_rows_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"query": "item {number}"}}\n' for number in range(20)) + "{nonsense\n")
    monkeypatch.setattr(datasets, "LOOKED_AT_ROWS", 7)
    with pytest.raises(DatasetError, match="line 21 is no JSON"):
        datasets.look(file)
    monkeypatch.setattr(datasets, "LOOKED_AT_WHOLE_BYTES", 100)
    rows, whole = datasets.look(file)
    assert (len(rows), whole) == (7, False)


@pytest.mark.parametrize("write", [jsonl, parquet_directory])
def test_files_are_closed_when_reading_ends_early(
    write: Callable[[Path, list[Any]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path, ROWS)
    opened: list[Any] = []
    real = Path.open

    def open_(self: Path, *args: Any, **settings: Any) -> Any:
        opened.append(real(self, *args, **settings))
        return opened[-1]

    monkeypatch.setattr(Path, "open", open_)
    with datasets.numbered_rows(place) as rows:
        next(rows)
    assert all(file.closed for file in opened)
    assert next(rows, None) is None
