"""An asyncio unit that blocks its loop outside any phase while the file RUN_DIR/block-UNIT exists."""

from __future__ import annotations

import time

from agentrl.unit import Unit, run_unit


async def main(unit: Unit) -> None:
    unit.ready()
    while await unit.sleep_async(0.05):
        unit.tick()
        block(unit)


def block(unit: Unit) -> None:
    order = unit.run_dir / f"block-{unit.name}"
    while order.exists() and unit.incarnation == 1:
        time.sleep(0.05)


if __name__ == "__main__":
    run_unit(main)
