"""Hangs in a phase, beyond its deadline, while the file RUN_DIR/hang-UNIT exists.

    python -m assets.units.hang [--at-most 2] [--hang-after STEPS]

`--at-most` is the deadline of one step in seconds; with `--hang-after` the first incarnation hangs after its steps.
"""

from __future__ import annotations

import time

from agentrl.unit import Unit, run_unit
from assets.units import options


def main(unit: Unit) -> None:
    given = options(__doc__, at_most=2.0, hang_after=0)
    order = unit.run_dir / f"hang-{unit.name}"
    steps = 0
    unit.ready()
    while not unit.draining:
        with unit.phase("step", at_most_s=given.at_most):
            while order.exists() or (unit.incarnation <= 1 and 0 < given.hang_after <= steps):
                time.sleep(0.05)  # The hang: it reacts to nothing.
            steps += 1
            unit.tick()
        unit.status(f"step {steps}")
        unit.sleep(0.05)


if __name__ == "__main__":
    run_unit(main)
