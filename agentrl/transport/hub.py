"""Implements the coordinator's socket for units, host agents and clients.

Invariants:
- No peer can make the hub wait.
- A local peer has no key name; a peer on tcp always has one.

A second bind to an ipc path succeeds and takes over new peers. So the coordinator locks its state directory before it
opens a hub.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.transport.router import Peer, Router
from agentrl.transport.tcp_authentication import Gate

__all__ = ["Hub", "Peer"]


def _ignore(peer: Peer) -> None:
    """The default for `on_gone`."""


class Hub:
    """A ROUTER on each ipc address and, with `listen` (tcp), one more that requires keys."""

    def __init__(
        self,
        *addresses: str,
        gate: Gate,
        on_message: Callable[[Peer, bytes], None],
        on_gone: Callable[[Peer], None] = _ignore,
        listen: str = "",
    ) -> None:
        self._gate = gate
        self._addresses = [each for each in (*addresses, listen) if each]
        self._on_message = on_message
        self._on_gone = on_gone
        self._routers: list[Router] = []

    def start(self) -> None:
        """Bind. Call this in the running loop, after the gate was started."""
        for address in self._addresses:
            self.listen(address)

    def listen(self, address: str) -> None:
        """Bind one more tcp address while the hub is open. Raises ConfigError if that is not possible."""
        self._routers.append(Router(address, self._gate, self._on_message, self._on_gone))

    def unlisten(self) -> None:
        """Close the sockets on tcp."""
        for router in [router for router in self._routers if router.guarded]:
            self._routers.remove(router)
            router.close()

    def restore_file(self) -> bool:
        """Restore the file of the first address if it was removed; returns whether it was."""
        return self._routers[0].restore_file()

    @property
    def peers(self) -> int:
        """Return how many connected peers have sent a message."""
        return sum(router.peers for router in self._routers)

    def send(self, peer: Peer, frame: bytes) -> bool:
        """Send a frame; returns False if the peer is gone (then `on_gone` is called) or does not read."""
        return peer.router.send(peer, frame)

    def close(self) -> None:
        """Queued replies are still sent; `Gate.close` waits for them, at most half a second."""
        for router in self._routers:
            router.close()
