"""The command status, against the real sockets of a scripted run."""

from __future__ import annotations

import io
import json
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from agentrl.cli.status_screen import screen
from agentrl.errors import ExitCode
from agentrl.formatting.row_text import unit_summary
from agentrl.protocol import rows
from agentrl.protocol.control_commands import LearningReport, StatusReport
from agentrl.protocol.messages import HostFacts
from tests.cli.conftest import CommandResult, Shell
from tests.cli.scripted import Scripted

HOSTILE = "[red]\x1b[31mred\x1b]0;owned\x07"


def unit(name: str = "web-0", **fields: object) -> rows.UnitRow:
    row = rows.UnitRow(name, name.rpartition("-")[0], "sidecar", rows.UnitState.READY, since_at=time.time() - 300)
    return rows.UnitRow(**{name: getattr(row, name) for name in row.__struct_fields__} | fields)  # type: ignore[arg-type]


def alert(**fields: object) -> rows.AlertRow:
    base: dict[str, object] = {
        "id": "unit-fatal:web-1",
        "rule": "unit-fatal",
        "subject": "web-1",
        "severity": rows.Severity.PAGE,
        "state": rows.AlertState.FIRING,
        "sentence": "web-1 gave up after 5 deaths.",
        "since_at": time.time() - 60,
        "suggest": "agentrl logs web-1 --previous",
    }
    return rows.AlertRow(**base | fields)  # type: ignore[arg-type]


def painted(report: StatusReport, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(screen(report, width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def report_of(*found: rows.AnyRow) -> StatusReport:
    def all_of(kind: type[Any]) -> tuple[Any, ...]:
        return tuple(row for row in found if isinstance(row, kind))

    runs = all_of(rows.RunRow) or (rows.RunRow("demo", "u", "running"),)
    return StatusReport(
        run=runs[0],
        groups=all_of(rows.GroupRow),
        units=all_of(rows.UnitRow),
        hosts=all_of(rows.HostRow),
        alerts=all_of(rows.AlertRow),
        operations=all_of(rows.OperationRow),
    )


def test_status_shows_what_training_has_reached_and_where_its_curves_are() -> None:
    learning = LearningReport(
        step=30,
        steps_wanted=2000,
        reward=0.66,
        evaluation=0.5,
        evaluation_margin=0.07,
        evaluation_best=0.97,
        evaluation_best_version=11,
        curves="/my runs/demo/tensorboard",
    )
    picture = painted(replace(report_of(), learning=learning), 120)
    assert "step 30 of 2000 · reward 0.66 · evaluation 0.50 ± 0.07, best 0.97 at version 11" in picture
    assert "curves: tensorboard --logdir '/my runs/demo/tensorboard'" in picture
    assert "curves" not in painted(replace(report_of(), learning=LearningReport(curves="/x")), 120), "nothing yet"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_status_fits_the_width_with_alerts_first(width: int) -> None:
    picture = painted(
        report_of(
            rows.RunRow("demo", "u", "degraded", reason="web-1 is fatal", started_at=time.time() - 3600),
            rows.GroupRow("web", "sidecar", 2, ready=1, other={"fatal": 1}),
            unit("web-0", status="serving", pid=4242, cpu_percent=12.0, rss_bytes=512 << 20, incarnation=3, restarts=2),
            unit("web-1", state=rows.UnitState.FATAL, reason="died 6 times in 300 s", incarnation=7),
            alert(),
        ),
        width,
    )
    assert max(len(line) for line in picture.splitlines()) <= width
    for needed in (
        "degraded",
        "web-1 is fatal",
        "1 of 2",
        "serving",
        "512 MiB",
        "fatal",
        "\n    agentrl logs web-1 --previous\n",
    ):
        assert needed in picture
    assert ("4242" in picture) is (width >= 120)
    assert picture.index("gave up") < picture.index("serving"), "alerts stand on top"


def test_narrow_terminal_shows_less_and_splits_no_word() -> None:
    report = report_of(
        rows.RunRow("demo", "u", "running", started_at=time.time()),
        unit("worker-0", status="generalises", pid=1, cpu_percent=12.0, rss_bytes=512 << 20, incarnation=3, restarts=2),
        unit("worker-1", status="generalises", pid=1, cpu_percent=99.0, rss_bytes=512 << 20, incarnation=3),
        rows.HostRow("far-away", "up", memory_used_bytes=1 << 30, facts=HostFacts(memory_bytes=24 << 30), units=2),
    )
    for width in (44, 50, 60, 72):
        picture = painted(report, width)
        assert max(len(line) for line in picture.splitlines()) <= width
        assert picture.count("generalises") == 2
        assert "1 GiB of 24 GiB" in picture
        assert ("512 MiB" in picture) is (width >= 50)


def test_hostile_text_neither_styles_nor_controls() -> None:
    picture = painted(
        report_of(
            rows.RunRow("demo", "u", HOSTILE, reason=HOSTILE),
            unit(status=HOSTILE, phase=HOSTILE, host=HOSTILE, waits=(rows.Wait(HOSTILE),)),
            alert(sentence=HOSTILE, suggest=HOSTILE, acknowledged_by=HOSTILE),
            rows.HostRow(HOSTILE, HOSTILE, disk_full=HOSTILE),
            rows.OperationRow("o", "scale", HOSTILE, HOSTILE, rows.OperationState.RUNNING, time.time()),
        ),
        200,
    )
    assert "\x1b" not in picture
    assert "\x07" not in picture
    assert "owned" not in picture
    assert "[red]red" in picture


def test_next_event_of_a_unit_comes_first() -> None:
    now = time.time()
    row = unit(state=rows.UnitState.BACKOFF, reason="died twice", next_what="restart", next_at=now + 4.5)
    assert unit_summary(row, now).startswith("restart in 4 s · died twice")


def test_status_shows_silenced_alerts_and_no_resolved_ones() -> None:
    shown = painted(
        report_of(alert(silenced_until_at=time.time() + 60), alert(id="old", state=rows.AlertState.RESOLVED)), 200
    )
    assert "unit-fatal:web-1: web-1 gave up" in shown
    assert "silenced until" in shown
    assert "old" not in shown


def test_alerts_that_another_one_explains_are_folded_into_it() -> None:
    lost = rows.UnitState.LOST
    cause = alert(id="host-lost:a", rule="host-lost", sentence="The host agent of a does not answer.")
    folded = [alert(id=f"unit-lost:web-{n}", rule="unit-lost", cause="host-lost:a", since_at=1.0) for n in range(3)]
    shown = painted(report_of(*folded, cause, unit("web-0", state=lost)), 200)
    assert "host-lost:a: The host agent of a does not answer." in shown
    assert "causes unit-lost ×3" in shown
    assert "unit-lost:web" not in shown


def test_units_are_in_the_order_of_their_numbers() -> None:
    shown = painted(report_of(*(unit(f"web-{slot}") for slot in (10, 9, 2))), 200)
    assert re.findall(r"^web-\d+", shown, re.MULTILINE) == ["web-2", "web-9", "web-10"]


def test_status_prints_a_table_and_json(shell: Shell, coordinator: Scripted) -> None:
    coordinator.rows["unit/web-0"] = unit(status=HOSTILE)
    shown = shell("status")
    assert "web-0" in shown.out
    assert "\x1b" not in shown.out
    report = shell("status", "--json").json
    assert report["run"]["name"] == "demo"
    assert report["units"][0]["status"] == HOSTILE, "JSON has the unchanged status"
    assert report["units"][0]["restarts"] == 0


def test_check_sets_the_exit_code(shell: Shell, coordinator: Scripted) -> None:
    shell("status", "--check", expect=ExitCode.OK)
    coordinator.rows["run"] = rows.RunRow("demo", "u", "degraded")
    shell("status", "--check", expect=ExitCode.UNHEALTHY)
    assert shell("status", "--check", "--json", expect=ExitCode.UNHEALTHY).json["run"]["state"] == "degraded"


def test_suggested_commands_name_the_run(shell: Shell, coordinator: Scripted) -> None:
    coordinator.rows["alert/x"] = alert()
    coordinator.answers["alerts"] = lambda args: [alert()]
    assert "\n    agentrl logs web-1 --previous\n" in shell("status").out
    for verb in (["status"], ["alerts", "list"]):
        assert "agentrl logs --run demo web-1 --previous" in shell(*verb, "--run", "demo").out


def test_follow_prints_the_table_and_then_each_state_change(
    shell: Shell, coordinator: Scripted, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    coordinator.rows["unit/web-0"] = unit()
    process = shell.start("status", "--follow")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("web-0 ") and "ready" in line for line in lines)
    assert any(line == "web-0 is ready\n" for line in lines)
    coordinator.publish("unit/web-0", unit(state=rows.UnitState.FATAL, reason=HOSTILE))
    assert any(line.startswith("web-0 is fatal: [red]red") for line in lines)
    result = interrupted(process)
    assert result.code == ExitCode.INTERRUPTED
    assert "\x1b" not in result.out


def test_follow_prints_every_change_as_a_json_line(
    shell: Shell, coordinator: Scripted, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    process = shell.start("status", "--follow", "--json")
    assert process.stdout is not None
    seen: list[dict[str, object]] = []
    while not any(line["key"] == "~caught-up" for line in seen):
        seen.append(json.loads(process.stdout.readline()))
    assert {line["key"] for line in seen} >= {"~reset", "run"}
    coordinator.publish("unit/web-7", unit("web-7", state=rows.UnitState.FATAL))
    lines = map(json.loads, iter(process.stdout.readline, ""))
    line = next(line for line in lines if not line["key"].startswith("~"))  # skip notices that the feed was late
    assert (line["key"], line["row"]["state"]) == ("unit/web-7", "fatal")
    result = interrupted(process)
    assert result.code == ExitCode.INTERRUPTED
    assert not result.err


def test_finished_job_is_completed() -> None:
    picture = painted(
        report_of(
            rows.GroupRow("job", "sidecar", 1, other={"completed": 1}),
            unit("job-0", group="job", state=rows.UnitState.STOPPED, done=True, reason="done"),
        ),
        80,
    )
    assert "1 completed" in picture
    assert "completed" in picture.partition("job-0")[2]
    assert "stopped" not in picture


def test_stopped_run_suggests_the_next_command() -> None:
    """This is the state after an interrupted `up`."""
    result = painted(report_of(rows.RunRow("demo", "u", "stopped", desired="down")), 80)
    assert "`agentrl up` brings it up" in result
    assert "agentrl up" not in painted(report_of(rows.RunRow("demo", "u", "running")), 80)
