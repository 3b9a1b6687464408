"""Ports for servers that listen some time after their port was chosen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agentrl.http import free_ports


def test_chosen_ports_are_outside_of_the_kernels_range() -> None:
    first, last = map(int, free_ports.KERNELS_OWN.read_text().split())
    chosen = free_ports.free_ports(200)
    assert len(set(chosen)) == 200
    assert not [port for port in chosen if first <= port <= last]


def test_used_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind((free_ports.LOOPBACK, 0))
        taken, left = other.getsockname()[1], free_ports.free_port()
        monkeypatch.setattr(free_ports, "_left_alone", lambda: [taken, left])
        assert free_ports.free_port() == left
        both = free_ports.free_ports(2)
        assert both[0] == left
        assert both[1] not in (taken, left), "without a port left, the kernel chooses one"


@pytest.mark.parametrize("seen", ["1024\t65535\n", "", None], ids=["everything", "nonsense", "nothing"])
def test_ports_are_found_without_a_free_range(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: str | None
) -> None:
    if seen is not None:
        (tmp_path / "range").write_text(seen)
    monkeypatch.setattr(free_ports, "KERNELS_OWN", tmp_path / "range")
    with socket.socket() as server:
        server.bind((free_ports.LOOPBACK, free_ports.free_port()))
