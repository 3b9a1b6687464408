"""Hosts on one machine: a network namespace for each, and a switch between them whose cables can be cut."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

PREFIX = "10.99.0"


class Network:
    def __init__(self, name: str, hosts: tuple[str, ...]) -> None:
        self._switch = f"{name}-switch"
        self._names = {host: f"{name}-{host}" for host in hosts}
        self._numbers = {host: number for number, host in enumerate(hosts, 1)}

    def lay(self) -> None:
        for namespace in (self._switch, *self._names.values()):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host, namespace in self._names.items():
            plug = self._plug(host)
            _ip("link", "add", plug, "netns", self._switch, "type", "veth", "peer", "name", "cable", "netns", namespace)
            _ip("-n", self._switch, "link", "set", plug, "master", "bridge", "up")
            _ip("-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", "cable")
            _ip("-n", namespace, "link", "set", "cable", "up")

    def address(self, host: str) -> str:
        return f"{PREFIX}.{self._numbers[host]}"

    def inside(self, host: str) -> list[str]:
        """The begin of a command that runs on the host."""
        return ["nsenter", f"--net=/run/netns/{self._names[host]}"]

    def cut(self, host: str) -> None:
        _ip("-n", self._switch, "link", "set", self._plug(host), "down")

    def limit(self, host: str, mbit: int) -> None:
        """How fast the cable of the host is, in each direction."""
        for namespace, end in ((self._names[host], "cable"), (self._switch, self._plug(host))):
            rate = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", end, "root", "tbf", *rate)

    def sent_bytes(self, host: str) -> int:
        shown = _run("ip", "-n", self._names[host], "-s", "-j", "link", "show", "dev", "cable")
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])

    def mend(self, host: str) -> None:
        _ip("-n", self._switch, "link", "set", self._plug(host), "up")

    def processes(self, host: str) -> list[int]:
        return [int(pid) for pid in _run("ip", "netns", "pids", self._names[host]).split()]

    def remove(self) -> None:
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
