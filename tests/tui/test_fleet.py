"""The columns and lines of the fleet view: problems are shown on the narrowest terminal, too."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agentrl.protocol import rows
from agentrl.protocol.messages import ProcessInfo, UnitPart
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.waiting import aeventually
from tui.model import cell_text, data_tables, unit_table
from tui.model.mirror import Mirror
from tui.model.styled_text import Span, Tone, cut
from tui.model.table import layout


def hosts(*strays: ProcessInfo, disk_full: str = "", state: str = "up", reason: str = "") -> str:
    mirror = Mirror()
    row = rows.HostRow(
        "far", state, cpu_percent=7, disk_free_bytes=1 << 40, strays=strays, disk_full=disk_full, reason=reason
    )
    mirror.put("host/far", row)
    return "".join(part.text for part in cut(unit_table.hosts(mirror), 80)).strip()


def test_deaths_of_a_unit_are_shown_on_the_narrowest_terminal() -> None:
    for width in range(57, 200):
        shown = [column.name for column, _ in layout(unit_table.columns(Mirror()), width)]
        assert {"unit", "state", "died", "what"} <= set(shown), width
    eighty = [column.title for column, _ in layout([c for c in unit_table.columns(Mirror()) if not c.optional], 78)]
    assert eighty == ["UNIT", "STATE", "FOR", "DIED", "CPU", "MEM", "WHAT"]


def test_host_column_appears_only_with_several_hosts() -> None:
    mirror, unit = Mirror(), rows.UnitRow("web-0", "web", "sidecar", rows.UnitState.READY, host="far")
    (host,) = [column for column in unit_table.columns(mirror) if column.name == "host"]
    mirror.put("host/far", rows.HostRow("far", "up"))
    assert host.optional
    assert not host.show(unit, 0.0).text
    mirror.put("host/near", rows.HostRow("near", "up"))
    assert host.show(unit, 0.0).text == "far"


def test_wait_of_an_operation_is_a_sentence() -> None:
    told = ("trainer-0 is starting (starting on vm)", "web-0 is pending (waits for mongo)")
    assert cell_text.waited_for(told) == "waits: trainer-0 is starting on vm, web-0 is pending (waits for mongo)"


def test_running_record_without_a_long_call_shows_that() -> None:
    assert data_tables.doing({"status": "running", "doing": None}) == "no call over 1 s"
    called = {"what": "tool call a.b", "age_s": 3.0}
    assert data_tables.doing({"status": "running", "doing": called}) == "tool call a.b, 3s"
    assert data_tables.doing({"status": "scored", "outcome": "answered"}) == "answered"


def stray(pid: int) -> ProcessInfo:
    return ProcessInfo(pid=pid, command="sleep 3333", why="mark; its incarnation has ended")


def test_host_that_leaves_says_why_before_its_load() -> None:
    assert hosts(state="draining", reason="leaves (evicted)") == "far draining leaves (evicted) cpu 7% disk 1T free"


def test_stray_processes_of_a_host_are_shown_before_its_load() -> None:
    assert hosts() == "far up cpu 7% disk 1T free"
    assert hosts(stray(71)).startswith("far up stray: pid 71 sleep 3333 (mark; its incarnation has ended) cpu 7%")
    assert hosts(stray(71), stray(72), stray(73)).startswith("far up stray: pid 71 sleep 3333 and 2 more (mark; ")
    assert hosts(disk_full="/scratch is full").startswith("far up /scratch is full cpu 7%")


@pytest.mark.parametrize(
    ("desired", "told", "tone"), [("up", "!web 0/2 stopped 2", Tone.BAD), ("down", "■web stopped", Tone.DIM)]
)
def test_stopped_units_are_healthy_in_a_run_that_is_down(desired: str, told: str, tone: Tone) -> None:
    mirror = Mirror()
    mirror.put("run", rows.RunRow("shop", "u", "stopped", desired=desired))
    mirror.put("group/web", rows.GroupRow("web", "sidecar", desired=2, other={"stopped": 2}))
    assert unit_table.strengths(mirror) == (Span(told, tone),)
    mirror.put("group/web", rows.GroupRow("web", "sidecar", desired=2, other={"stopped": 1, "fatal": 1}))
    (span,) = unit_table.strengths(mirror)
    assert span.tone is Tone.BAD, "a fatal unit is bad in any run"


@pytest.mark.parametrize(
    ("serving", "weights", "shown"),
    [
        ("", None, ""),
        ("", 3, "v3"),
        ("serving(v412)", 412, "v412"),
        ("loading(v4)", None, "→v4"),
        ("loading(v3→v4)", 3, "→v4"),
    ],
)
def test_weights_of_an_engine_fit_their_column(serving: str, weights: int | None, shown: str) -> None:
    mirror = Mirror()
    row = rows.UnitRow("engine-0", "engine", "engine", rows.UnitState.READY, serving=serving, weights=weights)
    column = next(column for column in unit_table.columns(mirror) if column.name == "weights")
    told = column.show(row, 0.0).text
    assert told == shown
    assert len(told) <= column.width


def test_group_with_desired_zero_is_not_missing() -> None:
    def told(ready: int, down: bool = False, **other: int) -> tuple[str, Tone]:
        return cell_text.strength(rows.GroupRow("engine", "engine", desired=0, ready=ready, other=other), down=down)

    assert told(0, stopped=2) == ("■engine stopped", Tone.DIM)
    assert told(0, completed=1) == ("■engine completed", Tone.DIM)
    assert told(0, down=True, completed=1) == ("■engine stopped", Tone.DIM)
    assert told(0, stopping=1) == ("◐engine 0/0 stopping 1", Tone.BUSY)


async def test_tool_servers_are_rows_below_their_toolbox(coordinator: Scripted) -> None:
    populate(coordinator)
    parts = (
        UnitPart("shop", "serving", "3 sessions, 1 call under way", died=2),
        UnitPart("search", "down", "search: it exited with 3"),
    )
    toolbox = rows.UnitRow("toolbox-0", "toolbox", "toolbox", rows.UnitState.READY, parts=parts)
    coordinator.rows["unit/toolbox-0"] = toolbox
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("2")
        await screen.shows("└ shop", "└ search", "it exited with 3", "3 sessions, 1 call")
        at = next(place for place, line in enumerate(screen.lines) if "toolbox-0" in line)
        assert "└ search" in screen.lines[at + 1]
        assert "└ shop" in screen.lines[at + 2]
        await screen.press("slash")
        await screen.type("shop")
        await screen.press("enter", "home", "r")
        await screen.shows("shop is a part of toolbox-0, which restarts it")
        assert not coordinator.sent("restart")
        await screen.press("enter")
        await aeventually(lambda: screen.app.view.name_in_registry == "unit")
        coordinator.publish("unit/toolbox-0", replace(toolbox, parts=parts[1:]))
        await screen.press("escape", "escape")
        await aeventually(lambda: "└ shop" not in screen.text and "└ search" in screen.text)
