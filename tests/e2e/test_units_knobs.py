"""Knobs of a living trainer: previewed by the unit, in force at their boundary, kept over restarts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from agentrl.errors import ConflictError, ExitCode, RefusedError
from agentrl.protocol.rows import AuditRow, KnobRow
from tests.e2e.running import Run, running
from tests.waiting import eventually


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for made in running(tmp_path_factory.mktemp("knobs"), f"t-{uuid.uuid4().hex[:8]}"):
        _begin(made)
        yield made


def _begin(run: Run) -> None:
    # One version lasts long enough to be observed.
    run.unit("fake", "fake_trainer", "--every", "1.0")
    run.up()
    # The knobs declared before the hello arrive first, the others when the work loop declares them.
    eventually(lambda: len([row for row in run.client.knobs() if row.owner == "fake"]) == 4, what="all its knobs")
    eventually(lambda: _in_force(run, "fake.bound", 4), what="the first report of the trainer")


def knob(run: Run, name: str) -> KnobRow:
    (row,) = run.client.knobs(name)
    return row


def _in_force(run: Run, name: str, value: object) -> bool:
    row = knob(run, name)
    assert row.in_force == value, f"{name} = {row.value}, in force {row.in_force}"
    return True


def test_knob_declarations_are_visible(run: Run) -> None:
    rows = {row["name"]: row for row in run.cli("tune") if row["name"].startswith("fake.")}
    assert sorted(rows) == ["fake.batch", "fake.bound", "fake.depth", "fake.noise"]
    assert rows["fake.bound"]["help"] == "how old a record may be"
    assert rows["fake.bound"]["boundary"] == "next version"
    assert rows["fake.bound"]["minimum"] == 0
    assert rows["fake.noise"]["scientific"] is True
    assert {row["owner"] for row in rows.values()} == {"fake"}


def test_value_out_of_range_is_refused_with_what_is_allowed(run: Run) -> None:
    output = run.raw("tune", "fake.bound", "-1")
    assert output.returncode != 0
    assert "a whole number of at least 0" in output.stderr
    with pytest.raises(RefusedError, match="a whole number of at least 0"):
        run.client.tune("fake.bound", -1)
    assert knob(run, "fake.bound").revision == 0


def test_preview_is_answered_by_the_unit_and_changes_nothing(run: Run) -> None:
    before = knob(run, "fake.bound")
    preview = run.cli("tune", "fake.bound", "1", "--preview")
    assert preview["dry_run"] is True
    assert "3 records void" in preview["effect"]["changes"]
    assert any(f"{before.value} -> 1, from the next version on" in line for line in preview["effect"]["changes"])
    assert knob(run, "fake.bound") == before


@pytest.mark.parametrize(("name", "value"), [("fake.batch", 16), ("fake.bound", 2)])
def test_new_value_takes_effect_at_its_boundary(run: Run, name: str, value: int) -> None:
    # A parked unit claims no record and begins no version, so the boundary does not come.
    run.cli("pause", "fake")
    eventually(lambda: run.unit_row("fake-0").phase == "parked")
    old = knob(run, name).in_force
    run.cli("tune", name, str(value))
    row = knob(run, name)
    assert (row.value, row.in_force) == (value, old)
    run.cli("resume", "fake")
    eventually(lambda: _in_force(run, name, value))


def test_restart_knob_waits_for_the_next_incarnation(run: Run) -> None:
    before = run.unit_row("fake-0")
    run.cli("tune", "fake.depth", "5")
    version = run.unit_row("fake-0").weights or 0
    eventually(lambda: (run.unit_row("fake-0").weights or 0) > version + 1, what="two versions more")
    row = knob(run, "fake.depth")
    assert (row.value, row.in_force) == (5, 2)
    run.cli("restart", "fake-0")
    assert run.unit_row("fake-0").incarnation == before.incarnation + 1
    eventually(lambda: _in_force(run, "fake.depth", 5))


def test_second_operator_learns_of_the_first_change(run: Run) -> None:
    seen = knob(run, "fake.batch")
    run.client.tune("fake.batch", 64, seen_revision=seen.revision)
    operations = len(run.client.events(kinds=("audit",), limit=10_000))
    with pytest.raises(ConflictError, match=r"fake.batch was changed by \S+ at .* to 64") as refused:
        run.client.tune("fake.batch", 128, seen_revision=seen.revision)
    assert "nothing was overwritten" in str(refused.value)
    assert knob(run, "fake.batch").value == 64
    assert len(run.client.events(kinds=("audit",), limit=10_000)) == operations, (
        "a refused change is not in the history"
    )


def test_scientific_knob_wants_a_note_and_begins_a_segment(run: Run) -> None:
    segment = run.run_row().segment
    refused = run.raw("tune", "fake.noise", "0.5")
    assert refused.returncode == ExitCode.REFUSED
    assert "needs a note" in refused.stderr
    assert run.run_row().segment == segment
    run.cli("tune", "fake.noise", "0.5", "--note", "does it matter?")
    eventually(lambda: _in_force(run, "fake.noise", 0.5))
    assert run.run_row().segment == segment + 1
    row = knob(run, "fake.noise")
    assert row.note == "does it matter?"
    audit = [a for a in run.client.events(kinds=("audit",), limit=10_000) if isinstance(a, AuditRow)]
    (line,) = [a for a in audit if a.command == "tune" and "fake.noise" in a.what]
    assert line.note == "does it matter?"
    assert "0 -> 0.5" in line.what


def test_undo_restores_the_value_in_the_unit(run: Run) -> None:
    old = knob(run, "fake.batch").value
    run.cli("tune", "fake.batch", "7")
    eventually(lambda: _in_force(run, "fake.batch", 7))
    run.cli("tune", "fake.batch", "--undo")
    assert knob(run, "fake.batch").value == old
    eventually(lambda: _in_force(run, "fake.batch", old))
    history = run.cli("tune", "fake.batch")["history"]
    assert [change["what"] for change in history[-2:]] == [f"fake.batch: {old} -> 7", f"fake.batch: 7 -> {old}"]


def test_tuned_values_survive_the_coordinator_and_another_up(run: Run) -> None:
    run.cli("tune", "fake.depth", "6")
    run.cli("tune", "supervision.max_deaths", "9")
    before = run.unit_row("fake-0")
    pid = run.coordinator_pid()
    run.kill(pid)
    eventually(lambda: run.run_row().coordinator_pid not in (0, pid))
    eventually(lambda: run.unit_row("fake-0").state == "ready")
    assert run.unit_row("fake-0").pid == before.pid
    assert knob(run, "fake.depth").value == 6
    run.up()
    assert knob(run, "fake.depth").value == 6
    assert knob(run, "supervision.max_deaths").value == 9
    run.config["supervision"]["max_deaths"] = 7
    run.up()
    assert knob(run, "supervision.max_deaths").value == 7, "the changed value of the file is newer"
    assert run.unit_row("fake-0").pid == before.pid


def test_tuned_values_survive_down_and_are_in_force_at_the_next_start(run: Run) -> None:
    run.cli("tune", "fake.depth", "3")
    run.cli("down", "--yes")
    run.up()
    eventually(lambda: _in_force(run, "fake.depth", 3))
