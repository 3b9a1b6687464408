"""The lower limit for a ROUTER: `python echo_router.py ADDRESS` returns every message without decoding it."""

from __future__ import annotations

import sys

import zmq


def echo(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(address)
        while True:
            identity, frame = router.recv_multipart()
            router.send_multipart([identity, frame])


if __name__ == "__main__":
    echo(sys.argv[1])
