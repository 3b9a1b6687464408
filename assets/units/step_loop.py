"""A blocking main loop that makes steps and can wait for another unit between them.

    python -m assets.units.step_loop [--every 0.1] [--steps N] [--waits-for UNIT [--waits-s 3]]

`--every` is the time of one step in seconds, and of one wait unless `--waits-s` is given.
"""

from __future__ import annotations

from agentrl.unit import Unit, run_unit
from assets.units import options


def main(unit: Unit) -> None:
    given = options(__doc__, every=0.1, steps=0, waits_for="", waits_s=0.0)
    step = 0
    unit.ready()
    while not unit.draining and (given.steps == 0 or step < given.steps):
        unit.park_while_paused()
        with unit.phase("step", at_most_s=30):
            step += 1
            unit.tick()
            unit.sleep(given.every)
        if given.waits_for:
            with unit.wait("its next batch", on=given.waits_for, at_most_s=60):
                unit.sleep(given.waits_s or given.every)
        unit.status(f"step {step}" + (f" of {given.steps}" if given.steps else ""))
        unit.metric("steps", step)


if __name__ == "__main__":
    run_unit(main)
