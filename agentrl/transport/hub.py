"""The coordinator's side of every conversation.

Invariants: nobody can make the hub wait; whoever is on this host is told from whoever came over tcp, and the latter
always has the name of a key. A second bind on an ipc path would succeed and steal new peers: the coordinator locks its
state directory before it opens a hub.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.transport.router import Peer, Router
from agentrl.transport.zap import Gate

__all__ = ["Hub", "Peer"]


def _ignore(peer: Peer) -> None:
    """Nobody wants to know."""


class Hub:
    """A ROUTER on `address` (ipc) and, with `listen` (tcp), a second one behind the gate."""

    def __init__(
        self,
        address: str,
        *,
        gate: Gate,
        on_message: Callable[[Peer, bytes], None],
        on_gone: Callable[[Peer], None] = _ignore,
        listen: str = "",
    ) -> None:
        self._gate = gate
        self._addresses = [each for each in (address, listen) if each]
        self._on_message = on_message
        self._on_gone = on_gone
        self._routers: list[Router] = []

    def start(self) -> None:
        """Bind. To be called in the running loop, after the gate was started."""
        for address in self._addresses:
            self._routers.append(Router(address, self._gate, self._on_message, self._on_gone))

    def listen(self, address: str) -> None:
        """Bind one more address, behind the gate, while the hub is open. Raises ConfigError if that cannot be."""
        self._routers.append(Router(address, self._gate, self._on_message, self._on_gone))

    def unlisten(self) -> None:
        """Close what is on tcp: nobody is reached there any more."""
        for router in [router for router in self._routers if router.guarded]:
            self._routers.remove(router)
            router.close()

    @property
    def peers(self) -> int:
        """How many peers are connected that said something."""
        return sum(router.peers for router in self._routers)

    def send(self, peer: Peer, frame: bytes) -> bool:
        """False if the peer is gone (then `on_gone` is called) or does not read."""
        return peer.router.send(peer, frame)

    def close(self) -> None:
        """Replies under way are still sent; `Gate.close` waits for them, at most half a second."""
        for router in self._routers:
            router.close()
