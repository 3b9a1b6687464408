"""Simulates a fleet in one process: host agents and the units that they start, each with a connection of its own.

The first line on stdin is a JSON object: `address`, `run`, `state_dir`, `hosts`, `stats_every_s`. `ready` is printed
when every host is welcomed; then each line on stdin is a command:

* `stats S`: hosts measure their units every S seconds;
* `die N S`: N units end within S seconds, one after another, and are started again;
* `change`: the next measurement of every unit differs from the last;
* `report`: answers with what happened since the last report.

Invariant: this process holds the lock of every host, because a coordinator admits only the process in `agent.json`.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from agentrl import __version__
from agentrl.host.agent_lock import AgentLock
from agentrl.protocol import messages
from agentrl.protocol.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, ExitStatus, HostFacts, UnitStats
from agentrl.protocol.wire import decode_from_coordinator, encode

BEAT_S = 2.0
METRICS_S = 1.0
MEASURED_SHARE = 10
"""Every tenth unit reports metrics once a second, as samplers do."""
METRICS = tuple(f"benchmark/value_{number}" for number in range(8))
ACK_EVERY = 5
SLICE_S = 0.005
RSS = 200 << 20


@dataclass
class Unit:
    name: str
    incarnation: int
    socket: zmq.Socket[bytes]
    number: int
    beats: int = 0


@dataclass
class Host:
    name: str
    socket: zmq.Socket[bytes]
    lock: AgentLock
    units: dict[str, Unit] = field(default_factory=dict)
    seq: int = 0


class Fleet:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], settings: dict[str, Any]) -> None:
        self._context = context
        self._settings = settings
        self.seen: Counter[str] = Counter()
        self.late_s = 0.0
        self._rss = float(RSS)
        self._deaths: deque[float] = deque()
        self._turns: deque[Unit] = deque()
        self._streams = {"beats": _Stream(BEAT_S), "stats": _Stream(settings["stats_every_s"])}
        self._streams["metrics"] = _Stream(METRICS_S * MEASURED_SHARE)
        self._hosts = [self._join(f"host-{number:03d}", number) for number in range(settings["hosts"])]
        self._poller = zmq.Poller()
        for host in self._hosts:
            self._poller.register(host.socket, zmq.POLLIN)
        self._by_socket = {host.socket: host for host in self._hosts}

    def _join(self, name: str, number: int) -> Host:
        run, folder = self._settings["run"], Path(self._settings["state_dir"]) / "hosts" / name
        host = Host(name, self._connect(), AgentLock(folder, run, name))
        facts = HostFacts(cpus=64, memory_bytes=1 << 40, boot_id=f"boot-{number}")
        pid, ticks = host.lock.identity.pid, host.lock.identity.start_ticks
        host.socket.send(encode(messages.HostHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, run, name, pid, ticks, facts)))
        answer = decode_from_coordinator(host.socket.recv())
        assert isinstance(answer, messages.Welcome), answer
        return host

    def _connect(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(self._settings["address"])
        return socket

    def command(self, line: str) -> str:
        match line.split():
            case ["report"]:
                return self.report()
            case ["stats", every_s]:
                self._streams["stats"] = _Stream(float(every_s))
            case ["die", count, within_s]:
                now = time.monotonic()
                self._deaths.extend(now + float(within_s) * n / int(count) for n in range(int(count)))
            case ["change"]:
                self._rss *= 1.5
        return "ok"

    def work(self) -> None:
        now = time.monotonic()
        for socket, _ in self._poller.poll(0):
            self._hear(self._by_socket[socket])
        units = len(self._turns)
        for _ in range(self._streams["beats"].due(now, units)):
            self._beat(self._next_unit())
        for turn in range(self._streams["stats"].due(now, len(self._hosts))):
            self._measure(self._hosts[(self._streams["stats"].sent + turn) % len(self._hosts)])
        for turn in range(self._streams["metrics"].due(now, units)):
            self._metrics(self._turns[(turn + self._streams["metrics"].sent) % units], now)
        while self._deaths and self._deaths[0] <= now:
            self._deaths.popleft()
            self._die()
        self.late_s = max(self.late_s, max(stream.late_s for stream in self._streams.values()))

    def _next_unit(self) -> Unit:
        self._turns.rotate(-1)
        return self._turns[0]

    def _hear(self, host: Host) -> None:
        while host.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            message = decode_from_coordinator(host.socket.recv(zmq.NOBLOCK))
            self.seen[type(message).__name__] += 1
            if isinstance(message, messages.Spawn):
                self._spawn(host, message)

    def _spawn(self, host: Host, spawn: messages.Spawn) -> None:
        unit = Unit(spawn.unit, spawn.incarnation, self._connect(), len(self._turns))
        host.units[spawn.unit] = unit
        self._turns.append(unit)
        host.socket.send(encode(messages.Spawned(spawn.unit, spawn.incarnation, os.getpid(), 1)))
        unit.socket.send(
            encode(
                messages.UnitHello(
                    major=PROTOCOL_MAJOR,
                    minor=PROTOCOL_MINOR,
                    run=self._settings["run"],
                    unit=spawn.unit,
                    incarnation=spawn.incarnation,
                    token=spawn.token,
                    pid=os.getpid(),
                    ready=True,
                    version=__version__,
                )
            )
        )

    def _beat(self, unit: Unit) -> None:
        while unit.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self.seen[type(decode_from_coordinator(unit.socket.recv(zmq.NOBLOCK))).__name__] += 1
        unit.beats += 1
        ack = (unit.beats + unit.number) % ACK_EVERY == 0
        unit.socket.send(encode(messages.Beat(unit.beats, progress=unit.beats, ack=ack)), zmq.NOBLOCK)
        self.seen["messages"] += 1

    def _metrics(self, unit: Unit, now: float) -> None:
        values = {name: now + number for number, name in enumerate(METRICS)}
        unit.socket.send(encode(messages.UnitMetrics(values)), zmq.NOBLOCK)
        self.seen["messages"] += 1

    def _measure(self, host: Host) -> None:
        host.seq += 1
        wobble = 1 + 0.002 * (host.seq % 5)
        stats = tuple(
            UnitStats(unit.name, unit.incarnation, 20.0 + host.seq % 3, int(self._rss * wobble))
            for unit in host.units.values()
        )
        host.socket.send(encode(messages.HostBeat(host.seq)))
        host.socket.send(encode(messages.HostStats(stats, 50.0, 1 << 36, 1 << 38)))
        self.seen["messages"] += 2

    def _die(self) -> None:
        host = max(self._hosts, key=lambda each: len(each.units))
        name, unit = next(iter(host.units.items()))
        del host.units[name]
        self._turns.remove(unit)
        unit.socket.close(linger=0)
        host.socket.send(encode(messages.Exited(name, unit.incarnation, ExitStatus(code=75))))
        host.socket.send(encode(messages.GroupEmpty(name, unit.incarnation)))

    def report(self) -> str:
        self.seen["units"] = len(self._turns)
        line = msgspec.json.encode({"late_s": self.late_s, **self.seen}).decode()
        self.late_s = 0.0
        self.seen.clear()
        return line


class _Stream:
    """Spreads the messages of many senders evenly over their period."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._began = time.monotonic()
        self._credit = 0.0
        self.sent = 0
        self.late_s = 0.0

    def due(self, now: float, senders: int) -> int:
        passed, self._began = now - self._began, now
        self.late_s = passed
        self._credit += passed * senders / self._every_s
        count = int(self._credit)
        self._credit -= count
        self.sent += count
        return count


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.readline())
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, 20_000)
        fleet = Fleet(context, settings)
        print("ready", flush=True)
        while True:
            fleet.work()
            if select.select([sys.stdin], [], [], SLICE_S)[0]:
                line = sys.stdin.readline()
                if not line:
                    break
                print(fleet.command(line), flush=True)
        context.destroy(linger=0)


if __name__ == "__main__":
    main()
