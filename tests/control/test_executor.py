"""The instructions of one turn are written, then performed; a failed one does not stop the others."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from agentrl.control import background_tasks
from agentrl.control import instruction_queue as executor_module
from agentrl.control.background_tasks import restarting_task
from agentrl.control.instruction_queue import Executor
from agentrl.control.persistence.journal import Batch, Journal, SetAside
from agentrl.errors import DiskError
from agentrl.supervision import instructions as do
from agentrl.supervision.unit_slots import RunState, Slot, State
from tests.waiting import aeventually


class Disk:
    """A journal whose disk can be full."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal.open(path / "journal.sqlite", at=1.0)
        self.full = False

    def commit(self, batch: Batch) -> list[SetAside]:
        if self.full:
            raise DiskError("The disk is full.")
        return self.journal.commit(batch)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def executor_on(disk: Disk, perform: list[do.Instruction]) -> Executor:
    def carry_out(instruction: do.Instruction) -> None:
        perform.append(instruction)
        if isinstance(instruction, do.StartTimer):
            raise ZeroDivisionError("unexpected")

    return Executor(disk, State(RunState()), carry_out)  # type: ignore[arg-type]


async def test_failed_instruction_does_not_stop_the_others(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    done: list[do.Instruction] = []
    executor = executor_on(disk, done)
    turn: list[do.Instruction] = [
        do.StartTimer("web-0", 1.0),
        do.KillTree("a", "web-1", 3),
        do.Publish("unit", "web-0"),
    ]
    answered: list[str] = []
    executor.add(turn)
    executor.then(lambda: answered.append(f"{1 / 0}"))
    executor.then(lambda: answered.append("the second"))
    await aeventually(lambda: answered)
    assert done == turn
    assert answered == ["the second"]
    assert caplog.text.count("ZeroDivisionError: ") == 2


async def test_entry_that_can_never_be_written_stops_nothing_else(disk: Disk) -> None:
    done: list[do.Instruction] = []
    set_aside: list[SetAside] = []
    executor = executor_on(disk, done)
    executor.on_set_aside = set_aside.append
    state = executor._state
    state.slots = {"web-0": Slot("web-0", "web", 0, reason="\ud800"), "web-1": Slot("web-1", "web", 1)}
    executor.event("incident", "x", math.nan, b"")
    executor.add(
        [
            *(do.Persist("slot", unit) for unit in state.slots),
            *(do.Spawn("a", unit, 1) for unit in state.slots),
        ]
    )
    executor.flush()
    assert not executor.full
    assert [(entry.kind, entry.key) for entry in set_aside] == [("slot", "web-0"), ("incident", "x")]
    assert list(disk.journal.all("slot")) == ["web-1"]
    assert done == [do.Spawn("a", "web-1", 1)]
    executor.put("operation", "1", b"later")
    executor.flush()
    assert disk.journal.get("operation", "1") == b"later"


async def test_events_that_wait_for_a_full_disk_are_bounded_and_counted(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor_module, "MOST_WAITING_EVENTS", 10)
    monkeypatch.setattr(executor_module, "RETRY_S", 0.05)
    executor = executor_on(disk, [])
    disk.full = True
    executor.event("audit", "first", 0.0, b"")
    await aeventually(lambda: executor.full)
    for number in range(100):
        executor.event("audit", f"{number}", float(number), b"")
    disk.full = False
    await aeventually(lambda: not executor.full)
    assert [event.id for event in disk.journal.events()] == [str(number) for number in range(90, 100)]
    assert "91 events were lost" in caplog.text


async def test_restarting_task_starts_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "RESTART_AFTER_S", 0.01)
    tries = iter([OSError("no descriptor is left"), ZeroDivisionError(), None])

    async def work() -> None:
        if failure := next(tries):
            raise failure

    async with asyncio.timeout(60):
        await restarting_task("some work", work)
    assert next(tries, "all were used") == "all were used"
