"""Starts host agents.

A backend only starts and releases agents and knows nothing of their units, so an agent behaves the same in every place.
An agent that lives is not started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Placed(msgspec.Struct, frozen=True):
    """One host agent of a backend."""

    host: str
    where: str
    """In the terms of the backend: a pid, a job step, a pod."""
    alive: bool


class Placement(Protocol):
    """The interface of a backend. The calls block, for long on a cluster: use a thread."""

    def ensure(self, hosts: Sequence[str]) -> tuple[Placed, ...]:
        """Start the agents of these hosts that do not live. Raises AgentrlError if one cannot be started."""

    def release(self, hosts: Sequence[str]) -> None:
        """Release the hosts, and end their agents. All units must have ended before."""

    def describe(self) -> tuple[Placed, ...]:
        """All agents that this backend has started, living or not."""
