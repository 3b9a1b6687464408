"""A unit whose work starts and ends by files and is never interrupted.

RUN_DIR/work-UNIT is its work, which ends when the file is removed; an order to stop does not end it.
"""

from __future__ import annotations

import time

from agentrl.unit import Unit, run_unit


def main(unit: Unit) -> None:
    order = unit.run_dir / f"work-{unit.name}"
    done = 0
    unit.ready()
    while unit.sleep(0.02):
        unit.park_while_paused()
        if not order.exists() or unit.draining:
            continue
        with unit.phase("work", at_most_s=60):
            while order.exists():
                time.sleep(0.02)
                unit.tick()
        done += 1
        unit.status(f"{done} done")


if __name__ == "__main__":
    run_unit(main)
