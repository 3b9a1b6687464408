"""Takes memory at a steady pace up to a limit, and keeps it.

python grower.py --mib-per-s 40 --to-mib 400
"""

from __future__ import annotations

import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--mib-per-s", type=float, required=True)
parser.add_argument("--to-mib", type=int, required=True)
options = parser.parse_args()

began, taken = time.monotonic(), []
while True:
    wanted = min(options.to_mib, (time.monotonic() - began) * options.mib_per_s)
    while len(taken) < wanted:
        # A zeroed block takes no memory until it is written.
        taken.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.05)
