"""The wall clock is set while no coordinator runs: the next one keeps the distance of every deadline."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentrl.control import recovery
from agentrl.control.clock import Clock
from agentrl.control.persistence.journal import Batch, Journal
from agentrl.control.persistence.stored_values import StoredValues
from agentrl.control.state.operations import Operation
from agentrl.protocol.rows import OperationState
from agentrl.protocol.wire import encode
from agentrl.supervision.unit_slots import Slot

WALL, AWAY_S = 1_800_000_000.0, 10.0


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "journal.sqlite", at=WALL)


def write(journal: Journal, boot_id: str = "boot-1") -> None:
    """The last coordinator: a unit that restarts in 60 s, is inside a phase for 900 s and died a moment ago."""
    clock = Clock(monotonic=lambda: 50.0, wall=lambda: WALL)
    recovery.follow_clock(StoredValues(journal), clock, boot_id)
    now = clock.now()
    slot = Slot(unit="web-0", group="web", number=0, since=now, timer=now + 60.0, phase_until=now + 900.0)
    slot.deaths = [now]
    operation = Operation("op1", "up", b"", "up", "ann", OperationState.RUNNING, now, now + 600.0)
    batch = Batch()
    batch.put("slot", "web-0", msgspec.msgpack.encode(slot))
    batch.put("operation", "op1", encode(operation))
    journal.commit(batch)


def read(journal: Journal, jump_s: float, boot_id: str = "boot-1") -> tuple[float, Slot, Operation]:
    clock = Clock(monotonic=lambda: 50.0 + AWAY_S, wall=lambda: WALL + AWAY_S + jump_s)
    recovery.follow_clock(StoredValues(journal), clock, boot_id)
    (operation,) = recovery.load_operations(StoredValues(journal))
    return clock.now(), recovery.load_state(StoredValues(journal), clock.now()).slots["web-0"], operation


@pytest.mark.parametrize("jump_s", [0.0, 0.5, -3600.0, 3600.0, -1e9, 1e9])
def test_deadlines_keep_their_distance(journal: Journal, jump_s: float) -> None:
    write(journal)
    now, slot, operation = read(journal, jump_s)
    assert slot.timer - now == pytest.approx(50.0, abs=0.6)
    assert slot.phase_until - now == pytest.approx(890.0, abs=0.6)
    assert now - slot.deaths[0] == pytest.approx(10.0, abs=0.6)
    assert operation.deadline - now == pytest.approx(590.0, abs=0.6)
    assert now - slot.since == pytest.approx(10.0, abs=0.6)


def test_each_jump_counts_once(journal: Journal) -> None:
    write(journal)
    read(journal, 3600.0)
    now, slot, _ = read(journal, 3600.0)
    assert slot.timer - now == pytest.approx(50.0)
    now, slot, _ = read(journal, -3600.0)
    assert slot.timer - now == pytest.approx(50.0)


def test_small_jumps_add_up(journal: Journal) -> None:
    write(journal)
    for n in range(1, 11):
        now, slot, _ = read(journal, 0.6 * n)
    assert slot.timer - now == pytest.approx(50.0, abs=1.0)


def test_clock_that_was_set_back_during_a_boot_delays_nothing(journal: Journal) -> None:
    """The time of the outage is unknown then, so it counts as none."""
    write(journal)
    now, slot, _ = read(journal, -86_400.0, boot_id="boot-2")
    assert slot.timer - now == pytest.approx(60.0)


def test_power_loss_of_a_day_ends_the_deadlines(journal: Journal) -> None:
    write(journal)
    now, slot, _ = read(journal, 86_400.0, boot_id="boot-2")
    assert slot.timer < now
