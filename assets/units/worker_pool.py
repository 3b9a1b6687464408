"""An async main loop: tasks that claim work, and a knob for the time that a piece of work takes.

python -m assets.units.worker_pool [--tasks 3]
"""

from __future__ import annotations

import argparse
import asyncio

from agentrl.unit import LiveKnob, Unit, run_unit


async def main(unit: Unit) -> None:
    options = _options()
    # The knob belongs to the group: `agentrl tune pool.work_s 0.2` sets it for all its units and their later
    # incarnations. A task reads it when it claims work, so work in progress is not affected.
    work_s = unit.knob(
        "pool.work_s", 1.0, boundary="next claim", unit="s", minimum=0.01, maximum=60.0, help="time for a piece of work"
    )
    unit.ready()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(options.tasks):
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=3, help="number of concurrent tasks")
    return parser.parse_args()


if __name__ == "__main__":
    run_unit(main)
