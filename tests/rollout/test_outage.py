"""A service that episodes need is down for a while. The episodes wait, lose nothing, and continue by themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agentrl.steward.epochs import Source
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.steward.steward import Steward
from agentrl.store import accounting
from agentrl.store.datasets import Row
from agentrl.store.documents import Record, Task
from agentrl.toolbox.circuit_breaker import BreakerRule
from tests.rollout.conftest import Stage, configuration, unruly_tools
from tests.waiting import aeventually

SEATS = 4


@contextlib.asynccontextmanager
async def kept(stage: Stage) -> AsyncIterator[Steward]:
    """A steward that makes its rounds."""
    shop = EnvironmentSettings(servers=("faulty",))
    rules = StewardSettings(environments={"shop": shop}, n=SEATS, groups=3, bound=1, max_in_flight=64)
    rows = [Row(query=f"what costs {number} pears?", answer="3", where=f"line {number}") for number in range(40)]
    steward = Steward(
        stage.db, rules, {"shop": Source.of(rows)}, incarnation="steward-0.1", unit="steward-0", run_dir=Path.cwd()
    )
    await steward.start()

    async def rounds() -> None:
        while True:
            await steward.round()
            await asyncio.sleep(0.05)

    going = asyncio.create_task(rounds(), name="rounds")
    try:
        yield steward
    finally:
        going.cancel()
        await asyncio.wait([going])


async def test_a_search_that_is_down_stops_admission_and_costs_no_seat_an_attempt(stage: Stage, tmp_path: Path) -> None:
    down = tmp_path / "down"
    down.touch()
    stage.config = configuration(**unruly_tools())
    await stage.toolbox(breaker=BreakerRule(open_s=0.2, open_most_s=0.4))
    asks = f"<tool_call>search(while_down={str(down)!r})</tool_call>"
    await stage.engine(lambda prompt: asks if len(prompt.answers) == 1 else "<answer>3</answer>")

    async def records(**wanted: Any) -> list[Record]:
        return [record for record in await stage.all(Record) if has(record, wanted)]

    async with kept(stage) as steward, stage.sampler(concurrency=32):
        await aeventually(lambda: "breaker open" in str(steward.held), what="admission stops")
        # Repeated probes find the server still broken. None of them costs its seat an attempt.
        await aeventually(lambda: enough(records(free=True, status="failed"), 8), what="probes")
        admitted = await stage.db.count("Task", {"admitted_order": {"$gt": 0}})
        assert admitted <= 6
        paid = await records(free=False, status="failed")
        assert len(paid) < 20, "fewer attempts count than a breaker needs to open"
        assert {task.status for task in await stage.all(Task)} == {"queued", "admitted"}, "no task is dead"
        down.unlink()
        await aeventually(lambda: stage.db.count("Task", {"status": "ready"}), what="groups close again")
        await aeventually(lambda: not steward.held, what="admission goes on")

    tasks = await stage.all(Task)
    assert not [task.reason for task in tasks if task.status == "dead"]
    assert all(task.round == 1 for task in tasks)
    assert all(task.members == SEATS for task in tasks if task.status == "ready")
    assert (await accounting.account(stage.db)).problems == ()


def has(record: Record, wanted: dict[str, Any]) -> bool:
    return all(getattr(record, name) == value for name, value in wanted.items())


async def enough(found: Any, count: int) -> bool:
    return len(await found) >= count
