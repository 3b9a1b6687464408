"""The recording shows every past moment, also before and after deaths of units and of the coordinator."""

from __future__ import annotations

import time
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.protocol.rows import IncidentRow, OperationRow, OperationState, RunRow, UnitRow, UnitState
from agentrl.protocol.wire import decode_row
from agentrl.recording.reader import Recording
from tests.e2e import onscreen
from tests.e2e.running import Run
from tests.waiting import eventually


def rows_at(recording: Recording, at: float) -> dict[str, object]:
    rows: dict[str, object] = {}
    for block in recording.blocks(recording.frame_at(at)):
        for change in block:
            if change.at <= at:
                rows[change.key] = None if change.gone else decode_row(change.value)
    return {key: row for key, row in rows.items() if row is not None}


def ready_at(recordings: Path, unit: str) -> float | None:
    """A moment at which the recording shows the unit ready."""
    now = time.time()
    try:
        row = rows_at(Recording.open(recordings), now).get(unit)
    except ConfigError:
        return None  # nothing was written yet
    return now if isinstance(row, UnitRow) and row.state is UnitState.READY else None


def test_recording_spans_deaths_of_units_and_of_the_coordinator(run: Run) -> None:
    run.unit("tick", "step_loop", "--every", "0.05")
    run.up()
    run.wait_state("tick-0", "ready")
    recordings = run.state_dir / "recordings"
    calm_at = eventually(lambda: ready_at(recordings, "unit/tick-0"), what="a ready unit in the recording")
    first = run.coordinator_pid()
    run.kill(run.unit_row("tick-0").pid)
    run.wait_incarnation("tick-0", above=1)

    def marked() -> Recording | None:
        found = Recording.open(recordings)
        return found if any(mark.key.startswith("incident/") for mark in found.marks) else None

    eventually(marked, what="the incident in the recording")
    run.kill(first)
    eventually(lambda: run.coordinator_pid() != first, what="another coordinator")
    run.wait_state("tick-0", "ready")

    def recorded_again() -> Recording | None:
        found = Recording.open(recordings)
        return found if len(found.frames) >= 2 and "unit/tick-0" in rows_at(found, found.end) else None

    recording = eventually(recorded_again, what="a frame of the second incarnation")
    assert not recording.damaged

    calm = rows_at(recording, calm_at)
    assert isinstance(calm["run"], RunRow)
    unit = calm["unit/tick-0"]
    assert isinstance(unit, UnitRow)
    assert (unit.state.value, unit.incarnation) == ("ready", 1)
    assert not [key for key in calm if key.startswith("incident/")]

    (mark, *_) = [mark for mark in recording.marks if mark.key.startswith("incident/")]
    incident = rows_at(recording, mark.at + 0.01)[mark.key]
    assert isinstance(incident, IncidentRow)
    assert incident.unit == "tick-0"

    last = rows_at(recording, time.time())
    unit = last["unit/tick-0"]
    assert isinstance(unit, UnitRow)
    assert unit.incarnation == run.unit_row("tick-0").incarnation

    # The new coordinator shows the incidents of the last one with their times.
    assert last[mark.key] == incident
    ups = [row for row in last.values() if isinstance(row, OperationRow) and row.command == "apply"]
    assert [row.state for row in ups] == [OperationState.SUCCEEDED]
    assert [each.key for each in recording.marks].count(mark.key) == 1
    onscreen.recorded(run, ("3",), "tick-0.1", "signal 9", "✓ succeeded", "coordinator")
    onscreen.recorded(run, ("2", "i"), "tick-0.1 died", "signal 9")
