"""Hosts on one machine: a network namespace for each, and a switch between them whose cables can be cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Collection
from pathlib import Path

import pytest

PREFIX = "10.99.0"
CABLE = Path(__file__).with_name("programs") / "cable.py"


class Network:
    def __init__(self, name: str, hosts: tuple[str, ...], poor: Collection[str] = ()) -> None:
        """`poor` are the hosts whose cable can be disturbed. Such a cable is slower than the others."""
        self._switch = f"{name}-switch"
        self._names = {host: f"{name}-{host}" for host in hosts}
        self._numbers = {host: number for number, host in enumerate(hosts, 1)}
        self._poor = poor
        self._cables: dict[str, subprocess.Popen[str]] = {}

    def lay(self) -> None:
        for namespace in (self._switch, *self._names.values()):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host, namespace in self._names.items():
            plug = self._plug(host)
            if host in self._poor:
                self._lay_poor(host)
            else:
                ends = ("netns", self._switch, "type", "veth", "peer", "name", "cable", "netns", namespace)
                _ip("link", "add", plug, *ends)
            _ip("-n", self._switch, "link", "set", plug, "master", "bridge", "up")
            _ip("-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", "cable")
            _ip("-n", namespace, "link", "set", "cable", "up")

    def _lay_poor(self, host: str) -> None:
        end = f"c{zlib.crc32(self._names[host].encode()):08x}"
        names = {end: ("cable", self._names[host]), f"{end}p": (self._plug(host), self._switch)}
        command = [sys.executable, str(CABLE), *names]
        self._cables[host] = cable = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert cable.stdout is not None
        assert cable.stdout.readline() == "laid\n"
        for made, (name, namespace) in names.items():
            _ip("link", "set", made, "name", name, "netns", namespace)

    def address(self, host: str) -> str:
        return f"{PREFIX}.{self._numbers[host]}"

    def inside(self, host: str) -> list[str]:
        """The beginning of a command line that runs a command on the host."""
        return ["nsenter", f"--net=/run/netns/{self._names[host]}"]

    def cut(self, host: str) -> None:
        _ip("-n", self._switch, "link", "set", self._plug(host), "down")

    def mend(self, host: str) -> None:
        _ip("-n", self._switch, "link", "set", self._plug(host), "up")

    def disturb(self, host: str, *, delay_s: float = 0.0, sent_lost: float = 0.0, received_lost: float = 0.0) -> None:
        """Set the delay of frames in each direction, and the shares of frames that are lost. Without arguments the
        cable works normally."""
        cable = self._cables[host]
        assert cable.stdin is not None
        assert cable.stdout is not None
        print(json.dumps({"delay_s": delay_s, "lost": [sent_lost, received_lost]}), file=cable.stdin, flush=True)
        assert cable.stdout.readline() == "done\n"

    def take_address(self, host: str, of: str) -> None:
        """Give the host the address of another host in addition to its own, and announce that to all others."""
        _ip("-n", self._names[host], "address", "add", f"{self.address(of)}/24", "dev", "cable")
        self._announce(host, self.address(of))

    def return_address(self, host: str, of: str) -> None:
        """Return the address to its owner alone, and announce that to all others."""
        _ip("-n", self._names[host], "address", "flush", "dev", "cable", "to", self.address(of))
        self._announce(of, self.address(of))

    def _announce(self, host: str, address: str) -> None:
        _ip("-n", self._names[host], "neighbour", "flush", "dev", "cable")
        for each in self._names:
            if self.address(each) != address and each != host:
                # The ARP request contains the sender's address, and hosts that know that address update their tables.
                send = f"import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.bind(({address!r}, 0))\n"
                _run(*self.inside(host), sys.executable, "-c", f"{send}s.sendto(b'', ({self.address(each)!r}, 9))")

    def limit(self, host: str, mbit: int) -> None:
        """Limit the speed of the cable of the host in each direction."""
        for namespace, end in ((self._names[host], "cable"), (self._switch, self._plug(host))):
            rate = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", end, "root", "tbf", *rate)

    def sent_bytes(self, host: str) -> int:
        shown = _run("ip", "-n", self._names[host], "-s", "-j", "link", "show", "dev", "cable")
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])

    def processes(self, host: str) -> list[int]:
        return [int(pid) for pid in _run("ip", "netns", "pids", self._names[host]).split()]

    def remove(self) -> None:
        for cable in self._cables.values():
            cable.kill()
            cable.communicate()
        for namespace in (*self._names.values(), self._switch):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True, timeout=60)

    def _plug(self, host: str) -> str:
        return f"plug{self._numbers[host]}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        pytest.fail("This test needs the program ip: `apt-get install iproute2`.")
    except subprocess.CalledProcessError as failed:
        needs_root = "; run it as root: `sudo make test`" if os.geteuid() else ""
        pytest.fail(f"{' '.join(command)}: {failed.stderr.strip()}{needs_root}")
