"""Text for a terminal has no control codes and fits; scripts get the same data as JSON."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentrl.cli import list_pages, output, progress
from agentrl.cli.calls import COLUMNS, SPARE
from agentrl.cli.options import Cli
from agentrl.cli.steps import STEPS, STEPS_RIGHT, STEPS_SPARE
from agentrl.protocol import rows, wire
from agentrl.protocol.effects import Tier
from tests.waiting import aeventually


@given(st.text())
def test_no_control_code_survives(text: str) -> None:
    clean = output.sanitise(text)
    assert not any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in clean)
    assert not set(clean) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
    clean.encode()
    assert output.sanitise(clean) == clean


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;c2VjcmV0\x1b\\after", "after"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x9b31mred", "red"),
        ("a\rb", "ab"),
        ("two\nlines\tand tab", "two lines and tab"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("ends in \x1b", "ends in "),
        ("[bold]no markup[/bold] :smile:", "[bold]no markup[/bold] :smile:"),
        ("Grüße 日本語", "Grüße 日本語"),
    ],
)
def test_hostile_text_is_shown_as_text(hostile: str, shown: str) -> None:
    assert output.sanitise(hostile) == shown


def test_table_does_not_parse_markup() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(output.table(("unit", "what"), [("web-0", "[red]\x1b[31m[/] done")]))
    assert "[red][/] done" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("lineage", ["trainer-0.1@20260101T000000", "trainer-0.1~0123abcd@20260101T000000"])
def test_list_of_steps_has_whole_headings_and_numbers_in_80_columns(lineage: str) -> None:
    step = {
        "id": f"{lineage}/000120",
        "status": "rolled_back",
        "counts": {"records": 128},
        "base_version": 119,
        "metrics": {"reward_mean": 0.123456, "loss": -0.00123456},
        "duration_s": 12.3,
        "committed_at": datetime.now(UTC),
    }
    cells = [[list_pages._shown(of(step)) for of in STEPS.values()]]
    console = Console(file=io.StringIO(), width=80)
    console.print(output.table(list(STEPS), cells, width=80, right=STEPS_RIGHT, spare=STEPS_SPARE))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for whole in ("step ", "status ", "records ", "reward ", "loss", " rolled_back ", " 128 ", "-0.001235"):
        assert whole in shown
    assert step["id"] == "".join(line.split()[0] for line in shown.splitlines()[1:])


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7500, "2 h 5 min"), (7200, "2 h"),
     (172800, "2 d"), (277200, "3 d 5 h")],
)  # fmt: skip
def test_ages(seconds: float, shown: str) -> None:
    assert output.age(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (1, "1 B"), (999, "999 B"), (1024, "1 KiB"), (1 << 30, "1 GiB"), (3 << 50, "3.07e+03 TiB")],
)
def test_sizes(count: float, shown: str) -> None:
    assert output.size(count) == shown


def test_json_has_all_fields_with_defaults() -> None:
    row = rows.UnitRow("web-0", "web", "sidecar", rows.UnitState.BACKOFF, waits=(rows.Wait("db-0"),))
    shown = output.plain({"row": wire.raw(row), "tier": Tier.DISRUPTIVE, "data": b"\xff"})
    assert shown["row"]["type"] == "unit"
    assert shown["row"]["state"] == "backoff"
    assert shown["row"]["restarts"] == 0
    assert shown["row"]["waits"][0] == {"on": "db-0", "what": "", "age_s": 0.0, "at_most_s": None, "who": ""}
    assert shown["tier"] == "disruptive"
    msgspec.json.encode(shown)


def test_json_keeps_a_row_of_a_newer_version() -> None:
    assert output.plain(wire.raw({"type": "engine", "name": "e"})) == {"type": "engine", "name": "e"}


FAILED = {
    "id": "shop/train/0/000012#r1.s3.a1/t2.0",
    "server": "shop",
    "tool": "calculator",
    "status": "tool_error",
    "error_class": "infrastructure",
    "owner": "sampler-0.1",
    "trained": False,
    "latency_s": 1.25,
    "result": "calculator cannot be reached, the line is down, and has been so for a while",
    "requested_at": datetime.now(UTC),
}


def listed(width: int) -> str:
    cells = [[list_pages._shown(of(FAILED)) for of in COLUMNS.values()]]
    console = Console(file=io.StringIO(), width=width)
    console.print(output.table(list(COLUMNS), cells, width=width, right=("took",), spare=SPARE))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_list_of_calls_has_whole_ids_and_errors_in_80_columns() -> None:
    heading, *lines = listed(80).splitlines()
    assert heading.split() == ["call", "tool", "took", "what"]
    assert lines[0].split()[:4] == [FAILED["id"], "shop.calculator", "1.2", "s"]
    result = " ".join(line[len(heading.partition("what")[0]) :].strip() for line in lines)
    assert result == FAILED["result"]
    assert max(map(len, lines)) <= 80


def test_column_is_shown_if_it_just_fits() -> None:
    wide = output.table(("one", "two"), [("a" * 10, "b" * 10)], width=22, spare=("two",))
    assert len(wide.columns) == 2  # type: ignore[union-attr]
    assert len(output.table(("one", "two"), [("a" * 10, "b" * 10)], width=21, spare=("two",)).columns) == 1  # type: ignore[union-attr]


def test_progress_without_a_terminal_prints_changes_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.Progress(Cli()) as shown:
        waits = [
            ("a is pending", "b is pending"),
            ("a is starting", "b is pending"),
            ("b is pending",),
            ("b is ready",),
        ]
        for waiting in [waiting for waiting in waits for _ in range(3)]:
            shown.units(waiting)
            now += 2.0
    assert capsys.readouterr().err.splitlines() == [
        "waiting for 2 units: a is pending, b is pending",
        "waiting for 2 units: a is starting",
        "waiting for 1 unit: b is ready",
    ]


async def test_progress_prints_a_change_that_came_too_soon_although_nothing_changes_any_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.05)
    printed = ""

    def all_of_it() -> bool:
        nonlocal printed
        printed += capsys.readouterr().err
        return "a is starting" in printed

    with progress.Progress(Cli()) as shown:
        shown.units(("a is pending",))
        shown.units(("a is starting",))
        await aeventually(all_of_it)
        shown.units(("a is ready",))
    assert printed.splitlines() == ["waiting for 1 unit: a is pending", "waiting for 1 unit: a is starting"]


def test_progress_shows_problems_of_units_while_it_waits_for_others(capsys: pytest.CaptureFixture[str]) -> None:
    operation = rows.OperationRow(
        "o", "apply", "up", "ann", rows.OperationState.RUNNING, 0.0, waiting_for=("trainer-0 is starting",)
    )
    toolbox = rows.UnitRow(
        "toolbox-0", "toolbox", "toolbox", rows.UnitState.READY, problems={"tool server x": "it died"}
    )
    with progress.Progress(Cli()) as shown:
        shown.unit(toolbox)
        shown.operation(operation)
    assert capsys.readouterr().err == "up: waiting for 1: trainer-0 is starting, toolbox-0: tool server x: it died\n"
