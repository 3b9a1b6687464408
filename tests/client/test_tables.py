"""Tables for notebooks: their columns, their order, and what is said if a package is missing."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.client import parquet_files, record_files, tables
from agentrl.client.lines_file import LinesFile
from agentrl.errors import ConfigError, UsageError

ROWS = [
    {"id": "a", "score": 1, "score_parts": {"right": 1.0}, "versions": [1, 2]},
    {"id": "b", "score": 0.5, "score_parts": {"right": 0.0, "short": 1.0}, "error": "late"},
    {"id": "c", "score": "?"},
]


def test_fields_within_fields_are_columns_with_dotted_names() -> None:
    frame = tables.table(ROWS[:2], "pandas", index="id", first=("id", "step"))
    assert list(frame.columns) == ["step", "score", "score_parts.right", "versions", "score_parts.short", "error"]
    assert list(frame["score_parts.right"]) == [1.0, 0.0]
    assert frame["score_parts.short"].isna().tolist() == [True, False]
    arrow = tables.table(ROWS, "arrow")
    assert arrow.column("score").to_pylist() == ["1", "0.5", "?"], "a column with several types has texts"
    assert arrow.column("score_parts.right").to_pylist() == [1.0, 0.0, None]
    assert tables.table(ROWS, "rows")[1]["score_parts.short"] == 1.0
    assert list(tables.table([], "pandas", first=("id", "score")).columns) == ["id", "score"]


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no form 'csv'"):
        tables.check("csv")
    for name in ("pandas", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    tables.check("rows")
    with pytest.raises(ConfigError, match="needs pandas") as missing:
        tables.check("pandas")
    assert "agentrl[notebook]" in missing.value.hint
    with pytest.raises(ConfigError, match="need pyarrow"):
        parquet_files.ParquetFile(tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


@contextmanager
def disk_with_room_for(size: int) -> Iterator[None]:
    """Writes behind it fail, as on a full disk. Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_file_that_a_full_disk_did_not_take_is_not_left_behind(tmp_path: Path) -> None:
    with disk_with_room_for(100), pytest.raises(UsageError, match="cannot be written: File too large"):
        record_files.write_new(tmp_path / "page.html", b"x" * 1000)
    with disk_with_room_for(100), pytest.raises(OSError), parquet_files.ParquetFile(tmp_path / "x.parquet"):  # noqa: PT011
        pass
    assert not list(tmp_path.iterdir())


def test_lines_are_in_a_file_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with LinesFile(file) as target:
        target.write(b"one\n")
        with disk_with_room_for(10), pytest.raises(OSError, match="File too large"):
            target.write(b"a longer line\n")
        target.write(b"two\n")
        assert file.read_bytes() == b"one\ntwo\n"
    with pytest.raises(FileExistsError):
        LinesFile(file, "x")
    with LinesFile(Path("/dev/full")) as full, pytest.raises(OSError, match="No space left"):
        full.write(b"one\n")


def test_parquet_file_without_a_row_is_not_left_behind_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), parquet_files.ParquetFile(tmp_path / "x.parquet"):
        raise RuntimeError("the coordinator is away")
    assert not list(tmp_path.iterdir())
