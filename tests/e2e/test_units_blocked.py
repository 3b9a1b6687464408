"""Units that block for long: an announced phase is allowed, unannounced silence leads to a replacement, and units that
only wait are alive.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.protocol.rows import IncidentRow, UnitRow
from tests.e2e.running import Run, running
from tests.waiting import PATIENCE_S, eventually

SILENT_S = 2.0
"""The silence that is allowed outside a phase."""
BLOCKED_S = 3.5 * SILENT_S


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for run in running(tmp_path_factory.mktemp("blocked"), f"t-{uuid.uuid4().hex[:8]}"):
        # On a busy machine writing stacks takes longer, and a unit may be late between its phases.
        run.config["supervision"]["stacks_grace_s"] = 10.0
        run.config["supervision"] |= {"suspect_after_s": SILENT_S, "dead_after_s": SILENT_S}
        long = ("--seconds", str(BLOCKED_S), "--at-most", "60")
        run.unit("released", "native_block", *long)
        run.unit("held", "native_block", *long, "--hold-gil")
        run.unit("silent", "native_block", "--seconds", "60", "--hold-gil", "--unannounced")
        run.unit("waiter", "many_waits", "--waits", "200", "--on", "judge-0")
        run.sidecar("judge", ["sleep", "1000"])
        run.up("--no-wait")
        yield run


def watched(run: Run, *units: str, blocks: int, within_s: float) -> dict[str, set[tuple[str, int]]]:
    """All states and incarnations of the units, seen until each has completed this many more blocks."""
    seen: dict[str, set[tuple[str, int]]] = {unit: set() for unit in units}
    at_first: dict[str, int] = {}

    def all_were() -> bool:
        rows = run.units()
        for unit in units:
            if rows[unit].ready_at:
                seen[unit].add((rows[unit].state, rows[unit].incarnation))
            at_first.setdefault(unit, times_blocked(rows[unit]))
        assert all(times_blocked(rows[unit]) >= at_first[unit] + blocks for unit in units), at_first
        return True

    eventually(all_were, within_s=within_s, every_s=0.1, what=f"{units} to be blocked {blocks} times")
    return seen


def times_blocked(row: UnitRow) -> int:
    """As the unit reports it; 0 before the first."""
    return int(row.status.split()[1]) if row.status else 0


def incidents(run: Run, unit: str) -> list[IncidentRow]:
    found = run.client.events(kinds=("incident",), limit=1000)
    return [row for row in found if isinstance(row, IncidentRow) and row.unit == unit]


def test_loop_that_blocks_inside_its_announced_phase_is_not_replaced(run: Run) -> None:
    # Of two blocks, at least one lies completely between the first look and the last.
    seen = watched(run, "released-0", "held-0", blocks=2, within_s=PATIENCE_S + 3 * BLOCKED_S)
    assert seen == {"released-0": {("ready", 1)}, "held-0": {("ready", 1)}}
    assert not incidents(run, "released-0")
    assert not incidents(run, "held-0")


def test_unannounced_silence_ends_in_stacks_and_a_replacement(run: Run) -> None:
    def recorded() -> IncidentRow | None:
        return next((row for row in incidents(run, "silent-0") if row.incarnation == 1), None)

    incident = eventually(recorded, what="an incident of silent-0")
    assert "hung: silent for" in incident.what
    assert "outside any announced phase" in incident.what
    # faulthandler writes the stacks without the GIL, so they exist although the unit executed no Python code.
    assert any("native_block.py" in line and "in _block" in line for line in incident.tail), incident.tail
    assert run.unit_row("silent-0").incarnation >= 2


def test_loop_with_200_waits_is_alive_and_reports_their_number(run: Run) -> None:
    def reported() -> UnitRow | None:
        row = run.wait_state("waiter-0", "ready")
        return row if "200 waits" in row.status else None

    before = eventually(reported)
    assert before.status == "200 records under way (200 waits, the oldest 20 listed)"
    assert [wait.what for wait in before.waits] == [f"record {number}" for number in range(20)]
    assert {wait.on for wait in before.waits} == {"judge-0"}
    eventually(lambda: run.unit_row("waiter-0").progress > before.progress + 5, what="its loop to continue")

    (chain,) = [chain for chain in run.cli("why")["chains"] if chain["culprit"] == "judge-0"]
    assert [(link["who"], link["what"]) for link in chain["links"]] == [
        ("waiter-0", f"record {number}") for number in range(20)
    ]
    assert all(link["age_s"] > 0 for link in chain["links"])
    output = run.raw("why").stdout
    assert "waiter-0 ← judge-0" in output
    assert "waiter-0 has 18 more such waits" in output
    after = run.unit_row("waiter-0")
    assert (after.state, after.incarnation) == ("ready", 1)


@pytest.mark.slow
def test_minute_in_foreign_code_is_allowed_with_the_default_times(tmp_path: Path) -> None:
    for run in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0):
        assert run.config["supervision"] == {}
        run.unit("released", "native_block", "--seconds", "60", "--at-most", "90")
        run.unit("held", "native_block", "--seconds", "60", "--at-most", "90", "--hold-gil")
        run.sidecar("big", ["sleep", "1000"], resources={"gpus": 512})
        run.up("--no-wait")
        seen = watched(run, "released-0", "held-0", blocks=1, within_s=120)
        assert seen == {"released-0": {("ready", 1)}, "held-0": {("ready", 1)}}
        assert not run.client.events(kinds=("incident",), limit=10)
        _alert_names_the_unit_that_cannot_be_placed(run)


def _alert_names_the_unit_that_cannot_be_placed(run: Run) -> None:
    """The alert fires after a minute, which has passed by then."""

    def firing() -> dict[str, object] | None:
        return next((alert for alert in run.cli("alerts", "list") if alert["id"] == "unit-pending:big-0"), None)

    alert = eventually(firing, what="the alert of a unit that is not started")
    assert alert["state"] == "firing"
    assert "big-0 should run but is not started: no host can take it" in str(alert["sentence"])
    assert "needs 512 GPU" in str(alert["sentence"])
    assert alert["suggest"] == "agentrl why"
