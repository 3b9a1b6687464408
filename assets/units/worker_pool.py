"""An async main loop: tasks that claim work, and a knob for the time that a piece of work takes.

python -m assets.units.worker_pool [--tasks 3]
"""

from __future__ import annotations

import asyncio

from agentrl.unit import LiveKnob, Unit, run_unit
from assets.units import options


async def main(unit: Unit) -> None:
    given = options(__doc__, tasks=3)
    # The knob belongs to the group: `agentrl tune pool.work_s 0.2` sets it for all its units and their later
    # incarnations. A task reads it when it claims work, so work in progress is not affected.
    work_s = unit.knob(
        "pool.work_s", 1.0, boundary="next claim", unit="s", minimum=0.01, maximum=60.0, help="time for a piece of work"
    )
    unit.ready()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(given.tasks):
            tasks.create_task(_work(unit, work_s))


async def _work(unit: Unit, work_s: LiveKnob[float]) -> None:
    # A drain ends the claiming, not the work in progress; when all tasks are done, `main` returns.
    while not unit.draining:
        await unit.park_while_paused_async()
        seconds = work_s.take()
        # Within the deadline of the phase the supervisor does not take the task for hung.
        with unit.phase("work", at_most_s=seconds + 30):
            await asyncio.sleep(seconds)
        unit.tick()
        unit.status(f"pieces of {seconds:g} s")


if __name__ == "__main__":
    run_unit(main)
