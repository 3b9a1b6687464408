"""Takes more and more memory, and reports how much."""

from __future__ import annotations

import time

taken = []
print("taking memory", flush=True)
while True:
    taken.append(bytearray(16 << 20))
    # A zeroed block takes no memory until it is written.
    for at in range(0, 16 << 20, 4096):
        taken[-1][at] = 1
    time.sleep(0.02)
