"""Blocks in native code inside an announced phase, with the GIL released or held.

    python -m assets.units.native_block [--seconds 60] [--hold-gil] [--at-most 90] [--unannounced]

`--at-most` is the deadline of the phase in seconds; with `--unannounced` there is no phase, as in a hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import time

from agentrl.unit import Unit, run_unit
from assets.units import options


def main(unit: Unit) -> None:
    given = options(__doc__, seconds=60.0, hold_gil=False, at_most=90.0, unannounced=False)
    unit.ready()
    blocks = 0
    # The pause lets heartbeats through, because a call that holds the GIL stops all threads of the process.
    while unit.sleep(1.0):
        with contextlib.nullcontext() if given.unannounced else unit.phase("native", at_most_s=given.at_most):
            _block(given.seconds, hold_gil=given.hold_gil)
            unit.tick()
        blocks += 1
        unit.status(f"blocked {blocks} times")


def _block(seconds: float, *, hold_gil: bool) -> None:
    # PyDLL keeps the GIL during the call, CDLL releases it.
    library = ctypes.PyDLL(None) if hold_gil else ctypes.CDLL(None)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        library.usleep(ctypes.c_uint(int(min(left, 600.0) * 1e6)))


if __name__ == "__main__":
    run_unit(main)
