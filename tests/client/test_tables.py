"""Tables for notebooks: their columns, their order, and what is said if a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.client import parquet_files, tables
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


def test_parquet_file_without_a_row_is_not_left_behind_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), parquet_files.ParquetFile(tmp_path / "x.parquet"):
        raise RuntimeError("the coordinator is away")
    assert not list(tmp_path.iterdir())
