"""An async main loop with many concurrent waits.

python -m assets.units.many_waits [--waits 200] [--on UNIT]
"""

from __future__ import annotations

import asyncio

from agentrl.unit import Unit, run_unit
from assets.units import options


async def main(unit: Unit) -> None:
    given = options(__doc__, waits=200, on="")
    async with asyncio.TaskGroup() as tasks:
        for number in range(given.waits):
            tasks.create_task(_wait_until_drained(unit, f"record {number}", given.on), name=f"wait-{number}")
        unit.ready()
        unit.status(f"{given.waits} records under way")
        while await unit.sleep_async(0.1):
            await unit.park_while_paused_async()
            unit.tick()


async def _wait_until_drained(unit: Unit, what: str, on: str) -> None:
    with unit.wait(what, on=on, at_most_s=600):
        await unit.sleep_async(600)


if __name__ == "__main__":
    run_unit(main)
