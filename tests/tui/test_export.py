"""Exports with any content: rows in three formats, whole trajectories, and a screenshot."""

from __future__ import annotations

import csv
import io
import json
import os
import unicodedata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.protocol import data_commands
from tests.cli.scripted import Scripted
from tests.tui.conftest import HOSTILE, Screen, opened, populate
from tests.tui.steward_answers import RECORD, answers
from tests.waiting import aeventually
from tui.model import export_formats
from tui.view_registry import TABLES

TEXT = st.text(alphabet=st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from("=+-@\x1b\t\r\n,\"'")))
OPENS = {
    "fleet": ("2",),
    "events": ("3",),
    "alerts": ("4",),
    "tuning": ("5",),
    "records": ("7",),
    "training": ("8",),
    "runs": ("9",),
    "tasks": ("7", "T"),
    "checkpoints": ("8", "C"),
    "keys": ("9", "K"),
    "hosts": ("2", "H"),
    "tool-errors": ("7", "e"),
    "calls": ("7", "t"),
    "replays": ("7", "V"),
    "reviews": ("7", "v"),
    "tool-servers": ("2", "T"),
    "tools": ("2", "T", "enter"),
    "tool-sessions": ("2", "T", "s"),
    "token-tree": ("7", "end", "enter", "b"),
    "evaluations": ("8", "V"),
    "other-models": ("7", "M"),
}


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "~own"]), TEXT | st.integers() | st.none()), max_size=5))
def test_exported_rows_equal_the_rows_of_the_table(rows: list[dict[str, Any]]) -> None:
    kept = [{name: value for name, value in row.items() if name != "~own"} for row in rows]
    assert json.loads(export_formats.as_json(rows)) == kept
    assert [json.loads(line) for line in export_formats.as_lines(rows).splitlines()] == kept
    table = export_formats.as_csv(rows)
    assert not any(unicodedata.category(sign) in ("Cc", "Cs") for sign in table.replace("\n", ""))
    lines = list(csv.reader(io.StringIO(table)))
    for row, line in zip(kept, lines[1:], strict=True):
        for name, cell in zip(lines[0], line, strict=True):
            assert not cell or cell[0] not in "=+@" or not isinstance(row.get(name), str)


async def typed(screen: Screen, text: str) -> None:
    """Replace the text of the field."""
    await screen.press("ctrl+u", "ctrl+k", *text, "enter")


def test_export_is_tested_for_every_table() -> None:
    assert set(OPENS) == set(TABLES)


async def test_every_table_can_be_exported_and_every_screen_can_be_drawn(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTRL_HOME", str(coordinator.state_dir.parent))
    populate(coordinator, long=HOSTILE)
    answers(coordinator, HOSTILE)
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        for number, (view, keys) in enumerate(OPENS.items()):
            for key in keys:
                await screen.press(key)
                await aeventually(lambda: "asking" not in (screen.app.view.heading(), *screen.text.split()))
            await aeventually(lambda view=view: screen.app.view.name_in_registry == view)
            await aeventually(lambda: len(screen.app.view.table.model) > 0)  # type: ignore[attr-defined]
            for suffix in ("json", "csv"):
                await screen.press("E")
                await screen.shows("write it")
                await typed(screen, f"{number}.{suffix}")
                await aeventually(lambda: len(screen.app.screen_stack) == 1, what="the end of the question")
                await screen.shows(f"{number}.{suffix}")
            screen.app.exporter.draw(tmp_path / f"{view}.svg")
    for number, view in enumerate(OPENS):
        rows = json.loads((tmp_path / f"{number}.json").read_text())
        assert rows
        table = (tmp_path / f"{number}.csv").read_text()
        assert len(list(csv.reader(io.StringIO(table)))) == len(rows) + 1
        assert "\x1b" not in table
        words = "".join(ElementTree.parse(tmp_path / f"{view}.svg").getroot().itertext())
        assert "demo" in words
        assert not any(unicodedata.category(sign) in ("Cc", "Cs") for sign in words.replace("\n", ""))


async def test_screenshot_is_written_to_a_file(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2")
        await screen.shows("web-2")
        await screen.press("f12")
        await screen.shows("The picture is in")
    (picture,) = [name for name in os.listdir(tmp_path) if name.endswith(".svg")]
    assert "web-2" in "".join(ElementTree.parse(tmp_path / picture).getroot().itertext())


async def test_file_that_cannot_be_written_is_reported(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    populate(coordinator)
    (tmp_path / "old.json").write_text("mine")
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("2", "E", "ctrl+u", "ctrl+k")
        await screen.shows("Type the name of a file.")
        await typed(screen, "rows.xml")
        await screen.shows("The name has to end with .json, .jsonl or .csv.")
        await typed(screen, "old.json")
        await screen.shows("This file exists already.")
        await typed(screen, "no/rows.jsonl")
        await screen.shows("There is no directory no.")
    assert (tmp_path / "old.json").read_text() == "mine"


async def test_trajectories_of_the_filter_are_exported(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    populate(coordinator)
    answers(coordinator)
    parts = [
        data_commands.ExportPart(b'{"a":1}\n{"b"', "one", 4, 1),
        data_commands.ExportPart(b":2}\n", "two", 0, 1, end=True),
    ]
    coordinator.answers["export_records"] = lambda args: parts[1 if args.after else 0]
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("7")
        await screen.shows(RECORD)
        await screen.press("slash")
        await screen.type("score>0.5")
        await screen.press("enter", "X")
        await screen.shows("Whole trajectories of records with score>0.5")
        await typed(screen, "some.jsonl")
        await screen.shows("has 2 records")
    assert (tmp_path / "some.jsonl").read_bytes() == b'{"a":1}\n{"b":2}\n'
    assert {args.filter for args in coordinator.sent("export_records")} == {"score>0.5"}  # type: ignore[attr-defined]
