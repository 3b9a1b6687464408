"""A cable between two network devices that it makes: `cable.py HERE THERE`.

It reads lines of JSON with the delay of a frame in each direction and the shares of lost frames, and answers each line.
A program does this because the kernel of a test machine may lack it. The same frames are lost in every run.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import sys
import time

SET_DEVICE, ETHERNET_FRAMES = 0x400454CA, 0x0002 | 0x1000
MOST_BYTES = 1 << 16


def device(name: str) -> int:
    opened = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(opened, SET_DEVICE, struct.pack("16sH22x", name.encode(), ETHERNET_FRAMES))
    return opened


def main() -> None:
    ends = [device(name) for name in sys.argv[1:]]
    print("laid", flush=True)
    delay_s, lost = 0.0, [0.0, 0.0]
    dice, numbers = random.Random(1), itertools.count()
    under_way: list[tuple[float, int, int, bytes]] = []
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for ready in select.select([*ends, 0], [], [], wait_s)[0]:
            if ready == 0:
                if not (line := sys.stdin.readline()):
                    return
                told = json.loads(line)
                delay_s, lost = told["delay_s"], told["lost"]
                print("done", flush=True)
                continue
            at = ends.index(ready)
            try:
                frame = os.read(ready, MOST_BYTES)
            except BlockingIOError:
                continue
            if dice.random() >= lost[at]:
                heapq.heappush(under_way, (time.monotonic() + delay_s, next(numbers), ends[1 - at], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(under_way)
            try:
                os.write(to, frame)
            except OSError:
                continue  # a device that is down takes none


main()
