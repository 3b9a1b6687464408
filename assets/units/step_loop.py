"""A blocking main loop that makes steps and can wait for another unit between them.

python -m assets.units.step_loop [--every 0.1] [--steps N] [--waits-for UNIT [--waits-s 3]]
"""

from __future__ import annotations

import argparse

from agentrl.unit import Unit, run_unit


def main(unit: Unit) -> None:
    options = _options()
    step = 0
    unit.ready()
    while not unit.draining and (options.steps == 0 or step < options.steps):
        unit.park_while_paused()
        with unit.phase("step", at_most_s=30):
            step += 1
            unit.tick()
            unit.sleep(options.every)
        if options.waits_for:
            with unit.wait("its next batch", on=options.waits_for, at_most_s=60):
                unit.sleep(options.every if options.waits_s is None else options.waits_s)
        unit.status(f"step {step}" + (f" of {options.steps}" if options.steps else ""))
        unit.metric("steps", step)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, default=0.1, help="seconds of one step")
    parser.add_argument("--steps", type=int, default=0, help="end after this many; 0 never ends")
    parser.add_argument("--waits-for", default="", help="a unit to wait for between steps")
    parser.add_argument("--waits-s", type=float, default=None, help="how long it waits; default: as long as a step")
    return parser.parse_args()


if __name__ == "__main__":
    run_unit(main)
