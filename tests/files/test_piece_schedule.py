"""Which piece is requested from which host: simulated hosts get one file, in any order and with any deaths."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.files.piece_schedule import Source, next_requests

AT_ONCE = 2


@dataclass
class Host:
    name: str
    have: int
    whole: bool = False
    origin: bool = False
    asked: dict[int, str] = field(default_factory=dict)
    dead: bool = False


class World:
    """In each step one piece arrives at one host. The knowledge of a host about the others is up to `late` steps
    old."""

    def __init__(self, hosts: list[Host], count: int, chance: random.Random, late: int) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.count = count
        self.sent: Counter[str] = Counter()
        self._chance = chance
        self._late = late
        self._history: list[dict[str, tuple[int, int]]] = []

    def step(self) -> bool:
        """Returns whether anything happened."""
        self._history.append({name: (host.have, _bitmap(host.asked)) for name, host in self.hosts.items()})
        for host in self.hosts.values():
            self._ask(host)
        arriving = [(host, piece) for host in self.hosts.values() if not host.dead for piece in host.asked]
        if not arriving:
            return False
        host, piece = self._chance.choice(arriving)
        self.sent[host.asked.pop(piece)] += 1
        host.have |= 1 << piece
        return True

    def run(self) -> None:
        """Run until nothing happens for longer than `late` steps, because a host with old knowledge may request nothing
        for a while."""
        quiet = 0
        while quiet <= self._late:
            quiet = 0 if self.step() else quiet + 1

    def kill(self, name: str) -> None:
        self.hosts[name].dead = True
        for host in self.hosts.values():
            host.asked = {piece: source for piece, source in host.asked.items() if source != name}

    def _ask(self, host: Host) -> None:
        everything = (1 << self.count) - 1
        if host.dead or host.have == everything:
            return
        sources = {}
        for other in self.hosts.values():
            if other is not host and not other.dead:
                have, asked = self._history[max(0, len(self._history) - 1 - self._chance.randint(0, self._late))][
                    other.name
                ]
                free = AT_ONCE - list(host.asked.values()).count(other.name)
                sources[other.name] = Source(have, asked, have == everything, other.origin, free)
        for piece, name in next_requests(host.name, host.have, _bitmap(host.asked), self.count, sources):
            assert sources[name].have >> piece & 1, "a piece was requested from a host without it"
            assert not host.have >> piece & 1, "a piece was requested that the host has already"
            assert piece not in host.asked, "a piece was requested twice"
            host.asked[piece] = name
        assert max(Counter(host.asked.values()).values(), default=0) <= AT_ONCE


def _bitmap(pieces: dict[int, str]) -> int:
    return sum(1 << piece for piece in pieces)


def world(hosts: int, count: int, seed: int, late: int) -> World:
    everything = (1 << count) - 1
    getting = [Host(f"h{number}", 0) for number in range(hosts)]
    return World([Host("a", everything, origin=True), *getting], count, random.Random(seed), late)


@settings(max_examples=60, deadline=None)
@given(hosts=st.integers(1, 5), count=st.integers(1, 40), seed=st.integers(0, 999), late=st.integers(0, 30))
def test_every_host_gets_every_piece_also_if_hosts_die(hosts: int, count: int, seed: int, late: int) -> None:
    made = world(hosts, count, seed, late)
    deaths = random.Random(seed).sample([f"h{number}" for number in range(hosts)], hosts // 2)
    for name in deaths:
        for _ in range(count // 2):
            made.step()
        made.kill(name)
    made.run()
    everything = (1 << count) - 1
    assert all(host.have == everything for host in made.hosts.values() if not host.dead)


@settings(max_examples=12, deadline=None)
@given(hosts=st.integers(2, 5), seed=st.integers(0, 999))
def test_host_that_wrote_the_file_sends_each_piece_about_once(hosts: int, seed: int) -> None:
    count = 128
    made = world(hosts, count, seed, late=4)
    made.run()
    assert made.sent["a"] <= 1.1 * count
    assert sum(made.sent.values()) == hosts * count


def test_host_that_comes_late_asks_the_others_and_not_the_origin() -> None:
    sources = {"a": Source(0b1111, whole=True, origin=True, free=2), "b": Source(0b1111, whole=True, free=2)}
    assert {source for _, source in next_requests("c", 0, 0, 4, sources)} == {"b"}
