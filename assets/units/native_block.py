"""Blocks in native code inside an announced phase, with the GIL released or held.

python -m assets.units.native_block [--for 60] [--hold-gil] [--at-most 90] [--unannounced]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import time

from agentrl.unit import Unit, run_unit


def main(unit: Unit) -> None:
    options = _options()
    unit.ready()
    blocks = 0
    # The pause lets heartbeats through, because a call that holds the GIL stops all threads of the process.
    while unit.sleep(1.0):
        with contextlib.nullcontext() if options.unannounced else unit.phase("native", at_most_s=options.at_most):
            _block(options.seconds, hold_gil=options.hold_gil)
            unit.tick()
        blocks += 1
        unit.status(f"blocked {blocks} times")


def _block(seconds: float, *, hold_gil: bool) -> None:
    # PyDLL keeps the GIL during the call, CDLL releases it.
    library = ctypes.PyDLL(None) if hold_gil else ctypes.CDLL(None)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        library.usleep(ctypes.c_uint(int(min(left, 600.0) * 1e6)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="seconds", type=float, default=60.0)
    parser.add_argument("--hold-gil", action="store_true")
    parser.add_argument("--at-most", type=float, default=90.0, help="deadline of the phase in seconds")
    parser.add_argument("--unannounced", action="store_true", help="without a phase, so that it looks like a hang")
    return parser.parse_args()


if __name__ == "__main__":
    run_unit(main)
