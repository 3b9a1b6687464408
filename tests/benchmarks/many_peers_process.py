"""Many units in one process. Each has its own connection, sends a hello, and then a heartbeat every second.

It reads an address and one hello per line, in hexadecimal, from stdin. It prints `ready` when all units are welcomed,
answers each further line with a report, and ends with stdin.
"""

from __future__ import annotations

import select
import sys
import time
from collections import Counter

import zmq

from agentrl.protocol import messages
from agentrl.protocol.wire import decode_from_coordinator, encode

SLICE_S = 0.01
ACK_EVERY = 5
"""Like units with the default lease."""
AT_ONCE = 64
"""Hellos in flight."""


class FakePeers:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, hellos: list[bytes]) -> None:
        self.seen: Counter[str] = Counter()
        self.late_s = 0.0
        self._hellos = hellos
        self._beats = [0] * len(hellos)
        self._sockets: list[zmq.Socket[bytes]] = []
        for begin in range(0, len(hellos), AT_ONCE):
            self._join(context, address, range(begin, min(begin + AT_ONCE, len(hellos))))
        self._next = 0
        self._began = time.monotonic()
        self._sent = 0

    def _join(self, context: zmq.Context[zmq.Socket[bytes]], address: str, members: range) -> None:
        for _ in members:
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(address)
            self._sockets.append(socket)
        for member in members:
            self._sockets[member].send(self._hellos[member])
        for member in members:
            answer = decode_from_coordinator(self._sockets[member].recv())
            assert isinstance(answer, messages.Welcome), answer

    def beat(self) -> None:
        """Sends the heartbeats that are due, spread over the second."""
        due = int((time.monotonic() - self._began) * len(self._sockets))
        self.late_s = max(self.late_s, (due - self._sent) / len(self._sockets))
        for _ in range(due - self._sent):
            member = self._next
            self._next = (member + 1) % len(self._sockets)
            self._one(member, self._sockets[member])
        self._sent = due

    def _one(self, member: int, socket: zmq.Socket[bytes]) -> None:
        while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            answer = decode_from_coordinator(socket.recv(zmq.NOBLOCK))
            self.seen[type(answer).__name__] += 1
            if isinstance(answer, messages.WhoAreYou):
                socket.send(self._hellos[member])
        self._beats[member] += 1
        seq = self._beats[member]
        # Units ask for an answer in different seconds.
        ack = (seq + member) % ACK_EVERY == 0
        socket.send(encode(messages.Beat(seq, progress=seq, ack=ack)), zmq.NOBLOCK)

    def report(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in sorted(self.seen.items()))
        line = f"late={self.late_s:.3f} {counts}"
        self.late_s = 0.0
        self.seen.clear()
        return line


def main() -> None:
    address, *hellos = sys.stdin.readline().split()
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, len(hellos) + 10)
        crowd = FakePeers(context, address, [bytes.fromhex(hello) for hello in hellos])
        print("ready", flush=True)
        while True:
            crowd.beat()
            if select.select([sys.stdin], [], [], SLICE_S)[0]:
                if not sys.stdin.readline():
                    break
                print(crowd.report(), flush=True)
        context.destroy(linger=0)


if __name__ == "__main__":
    main()
