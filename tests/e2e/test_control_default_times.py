"""A run from `up` to `down` with the default supervision times."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.supervision_times import SupervisionTimes
from tests.e2e.running import Run, running
from tests.waiting import eventually


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


@pytest.mark.slow
def test_run_works_with_the_default_times(run: Run) -> None:
    run.unit("step", "step_loop", "--every", "0.1", count=2)
    run.sidecar("web", ["sleep", "1000"], count=2)
    run.sidecar("late", ["sleep", "1000"], after=["step", "web"])
    run.up()
    assert "supervision" not in run.config or not run.config["supervision"]
    tuned = {row["name"]: row["value"] for row in run.cli("tune")}
    assert tuned["supervision.dead_after_s"] == SupervisionTimes().dead_after_s == 20.0

    before = run.units()
    assert {row.state for row in before.values()} == {"ready"}
    run.kill(before["step-1"].pid)
    again = run.wait_incarnation("step-1", above=1)
    assert again.last_exit is not None
    assert again.last_exit.signal == 9

    pid = run.coordinator_pid()
    run.kill(pid)
    eventually(lambda: run.run_row().coordinator_pid not in (0, pid), what="the next coordinator")
    eventually(lambda: {row.state for row in run.units().values()} == {"ready"})
    assert run.incarnations() == {"step-0": 1, "step-1": 2, "web-0": 1, "web-1": 1, "late-0": 1}
    eventually(lambda: run.unit_row("step-0").progress > before["step-0"].progress + 20, what="its progress")

    run.cli("scale", "web", "+2")
    run.cli("scale", "step", "-1")
    run.cli("tune", "supervision.suspect_after_s", "7")
    # Long enough for every heartbeat, measurement and rule at its default interval.
    seen = run.unit_row("step-0").progress
    eventually(lambda: run.unit_row("step-0").progress > seen + 80, within_s=120, what="a time without changes")
    assert {unit: row.state for unit, row in run.units().items()} == dict.fromkeys(
        ("step-0", "web-0", "web-1", "web-2", "web-3", "late-0"), "ready"
    )
    # Alerts about the machine itself do not count.
    assert [a["id"] for a in run.cli("alerts", "list") if a["rule"] != "host-disk-low"] == []
    assert [row.unit for row in run.client.events(kinds=("incident",))] == ["step-1", "coordinator"]

    down = run.cli("down", "--yes")
    assert down["proven"]
    assert not run.processes()
    assert not list((run.state_dir / "hosts").glob("*/agent.json"))
