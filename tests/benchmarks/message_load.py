"""Keeps 64 messages in flight at a peer and prints the rate: `python message_load.py ADDRESS SECONDS`.

Reads the frames from stdin. The same program drives the coordinator and the bare loop, so that only they differ.
"""

from __future__ import annotations

import sys
import time

import zmq

IN_FLIGHT = 64


def pump(address: str, hello: bytes, frame: bytes, for_s: float) -> float:
    """Returns answers per second."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(address)
        dealer.send(hello)
        dealer.recv()
        for _ in range(IN_FLIGHT):
            dealer.send(frame)
        send, receive = dealer.send, dealer.recv
        count, began = 0, time.perf_counter()
        until = began + for_s
        while time.perf_counter() < until:
            for _ in range(IN_FLIGHT):
                receive()
                send(frame)
            count += IN_FLIGHT
        return count / (time.perf_counter() - began)


if __name__ == "__main__":
    body = sys.stdin.buffer.read()
    length = int.from_bytes(body[:4])
    print(pump(sys.argv[1], body[4 : 4 + length], body[4 + length :], float(sys.argv[2])))
