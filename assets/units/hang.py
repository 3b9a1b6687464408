"""Hangs in a phase, beyond its deadline, while the file RUN_DIR/hang-UNIT exists.

python -m assets.units.hang [--at-most 2] [--hang-after STEPS]
"""

from __future__ import annotations

import argparse
import time

from agentrl.unit import Unit, run_unit


def main(unit: Unit) -> None:
    options = _options()
    order = unit.run_dir / f"hang-{unit.name}"
    steps = 0
    unit.ready()
    while not unit.draining:
        with unit.phase("step", at_most_s=options.at_most):
            while order.exists() or (unit.incarnation <= 1 and 0 < options.hang_after <= steps):
                time.sleep(0.05)  # The hang: it reacts to nothing.
            steps += 1
            unit.tick()
        unit.status(f"step {steps}")
        unit.sleep(0.05)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-most", type=float, default=2.0, help="deadline of one step in seconds")
    parser.add_argument("--hang-after", type=int, default=0, help="the first incarnation hangs after this many steps")
    return parser.parse_args()


if __name__ == "__main__":
    run_unit(main)
