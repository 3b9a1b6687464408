"""A unit whose work is controlled by files and is never interrupted.

It works while RUN_DIR/work-UNIT exists. An order to stop does not end the work.
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
