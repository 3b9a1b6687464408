"""An async main loop with many concurrent waits.

python -m assets.units.many_waits [--waits 200] [--on UNIT]
"""

from __future__ import annotations

import argparse
import asyncio

from agentrl.unit import Unit, run_unit


async def main(unit: Unit) -> None:
    options = _options()
    async with asyncio.TaskGroup() as tasks:
        for number in range(options.waits):
            tasks.create_task(_wait_until_drained(unit, f"record {number}", options.on), name=f"wait-{number}")
        unit.ready()
        unit.status(f"{options.waits} records under way")
        while await unit.sleep_async(0.1):
            await unit.park_while_paused_async()
            unit.tick()


async def _wait_until_drained(unit: Unit, what: str, on: str) -> None:
    with unit.wait(what, on=on, at_most_s=600):
        await unit.sleep_async(600)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waits", type=int, default=200)
    parser.add_argument("--on", default="", help="the unit that it waits for")
    return parser.parse_args()


if __name__ == "__main__":
    run_unit(main)
