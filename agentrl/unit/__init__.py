"""Turns any main loop, async or blocking, into a supervised unit.

    from agentrl.unit import Unit, run_unit

    def main(unit: Unit) -> None:
        unit.ready()
        while not unit.draining:
            unit.park_while_paused()
            with unit.phase("step", at_most_s=900):
                step()
                unit.tick()

    if __name__ == "__main__":
        run_unit(main)

`run_unit` takes an `async def main(unit)` as well, and runs it in a loop of its own; `await arun_unit(main)` is for a
program that has a loop already. The same main loop runs on its own when no coordinator is in the environment.
"""

from __future__ import annotations

from agentrl.protocol.knob import Boundary
from agentrl.unit.runner import arun_unit, run_unit
from agentrl.unit.unit import Unit
from agentrl.unit.unit_knobs import LiveKnob, Preview

__all__ = ["Boundary", "LiveKnob", "Preview", "Unit", "arun_unit", "run_unit"]
