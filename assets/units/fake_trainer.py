"""Reports versions of weights that do not exist; owns one knob for each boundary.

    python -m assets.units.fake_trainer [--every 0.5] [--versions N] [--waits-for UNIT]

`--every` is the time of one version in seconds; `--waits-for` names the unit that provides its batches.
"""

from __future__ import annotations

from agentrl.unit import Unit, run_unit
from assets.units import options


def main(unit: Unit) -> None:
    given = options(__doc__, every=0.5, versions=0, waits_for="")
    bound = unit.knob(
        "fake.bound",
        4,
        boundary="next version",
        minimum=0,
        help="how old a record may be",
        preview=lambda new: f"{max(0, 4 - new)} records void",
    )
    batch = unit.knob("fake.batch", 32, boundary="next claim", minimum=1, help="records of one step")
    noise = unit.knob("fake.noise", 0.0, help="added to the reward", scientific=True)
    depth = unit.knob("fake.depth", 2, boundary="restart", help="layers")
    version = 0
    unit.ready()
    while not unit.draining and (given.versions == 0 or version < given.versions):
        unit.park_while_paused()
        with unit.wait("batch", on=given.waits_for, at_most_s=60):
            unit.sleep(given.every / 2)
        batch.take()
        with unit.phase("step", at_most_s=60):
            unit.sleep(given.every / 2)
            unit.tick()
        version += 1
        bound.take()
        unit.weights = version
        unit.status(f"version {version}: bound {bound.value}, batch {batch.value}, depth {depth.value}")
        unit.metric("reward", 1 - 1 / (version + 1) + noise.value)


if __name__ == "__main__":
    run_unit(main)
