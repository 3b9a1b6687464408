"""Decides which machine may speak as a host of the run.

Two machines may have one name, and a copied disk has the same machine id and key. If both spoke as one host, each would
report that the units of the other have ended.

Invariants:
- A name belongs to the machine that joined with it first, until the host is forgotten.
- Two machines are never one host at the same time.
- An access key registers one host.
"""

from __future__ import annotations

import hashlib

import msgspec


class JoinedHost(msgspec.Struct, frozen=True):
    """The machine that is a host of the run. Persisted."""

    host: str
    key_hash: str = ""
    """The hash of the key in its `host.json`; empty for the agent of an earlier version, which sends no key."""
    machine_id: str = ""
    boot_id: str = ""
    access_key: str = ""
    """The name of the key with which it connects."""


class HostRefusal(msgspec.Struct, frozen=True):
    message: str
    hint: str
    final: bool = True


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


class JoinedHosts:
    """The machines by the name of their host, without the coordinator's own machine, which the kernel identifies."""

    def __init__(self, known: dict[str, JoinedHost] | None = None) -> None:
        self._known = known or {}

    def names(self) -> list[str]:
        return list(self._known)

    def key_of(self, host: str) -> str:
        known = self._known.get(host)
        return known.access_key if known is not None else ""

    def refusal(self, claim: JoinedHost, *, connected: bool) -> HostRefusal | None:
        """Return why this machine may not be the host; `connected` says whether one with this name is."""
        name, known = claim.host, self._known.get(claim.host)
        for other in self._known.values():
            if other.access_key == claim.access_key != "" and other.host != name:
                return HostRefusal(
                    f"The key {claim.access_key} belongs to host {other.host}, not to {name}.",
                    "Make a key for each host: `agentrl keys new NAME --permission host`.",
                )
        if known is None:
            return None
        if known.key_hash and claim.key_hash != known.key_hash:
            return HostRefusal(
                f"Another machine has joined the run as host {name}.",
                f"Give this one another name (--name). {name} is free when its host has been silent for some minutes "
                "and holds no unit.",
            )
        # The agent of an earlier version sent no machine id, and may just have been upgraded.
        same_machine = claim.machine_id == known.machine_id or not known.key_hash
        if connected and not (same_machine and claim.boot_id == known.boot_id):
            return HostRefusal(
                f"Host {name} is connected from another machine that has the same key.",
                "If the state directory was copied, remove the copy and join with another name. After a reboot, wait.",
                final=False,
            )
        return None

    def join(self, claim: JoinedHost) -> bool:
        """Record the machine; returns whether it differs from what was known."""
        changed = self._known.get(claim.host) != claim
        self._known[claim.host] = claim
        return changed

    def forget(self, host: str) -> bool:
        return self._known.pop(host, None) is not None
