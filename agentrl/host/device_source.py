"""Defines the interface of each kind of accelerator to the host agent."""

from __future__ import annotations

from typing import Protocol

import msgspec

from agentrl.protocol.messages import Device


class Measured(msgspec.Struct, frozen=True):
    id: str
    memory_used_bytes: int = 0
    busy_percent: float = 0.0
    temperature_c: float = 0.0
    pids: tuple[int, ...] = ()
    not_measured: str = ""


class Source(Protocol):
    """One kind of accelerator."""

    problem: str
    """Why devices may be missing; empty if none are missing."""

    def devices(self) -> tuple[Device, ...]:
        """The devices in the order of their buses."""

    def measure(self) -> tuple[Measured, ...]: ...
