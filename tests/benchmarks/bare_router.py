"""The lower limit for `many_peers`: a ROUTER that reads every heartbeat without decoding it and answers every fifth.

`python bare_router.py ADDRESS WELCOME ACK`, the two answers in hexadecimal; the first message of a peer is its hello.
"""

from __future__ import annotations

import resource
import sys

import zmq

ACK_EVERY = 5


def answer(address: str, welcome: bytes, ack: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.backlog = 4096
        router.bind(address)
        seen: set[bytes] = set()
        count = 0
        while True:
            identity, _ = router.recv_multipart()
            count += 1
            if identity not in seen:
                seen.add(identity)
                router.send_multipart([identity, welcome])
            elif count % ACK_EVERY == 0:
                router.send_multipart([identity, ack])


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    answer(sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3]))
