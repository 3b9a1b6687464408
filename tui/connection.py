"""Keeps the console's one connection, and follows a run's feed into the mirror.

Invariants:
- The console survives its coordinator.
- The console reconnects with growing pauses, and at once on request.
- Every attempt looks the run up again, so a run that was restarted is found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from agentrl.client import CAUGHT_UP, RESET, SILENT, Client
from agentrl.client.discovery import Target, what_to_do
from agentrl.errors import AgentrlError, NoCoordinatorError
from tui.model.mirror import Mirror

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0


class Connection:
    def __init__(self, mirror: Mirror, connect: Callable[[], Client]) -> None:
        self.mirror = mirror
        self.next_try_at: float | None = None
        """Clock of the next attempt while there is no connection."""
        self._connect = connect
        self._client: Client | None = None
        self._hurry = asyncio.Event()
        self._settled = asyncio.Event()
        """Set once the first attempt has succeeded or failed."""

    @property
    def client(self) -> Client:
        """The client for queries and commands. Raises NoCoordinatorError while there is no connection."""
        if self._client is None or not self.mirror.link.connected:
            raise NoCoordinatorError(f"No coordinator answers: {self.mirror.link.why}", hint=self.mirror.link.hint)
        return self._client

    async def to_ask(self) -> Client:
        """The client for a query; waits for the first attempt to connect."""
        await self.settled()
        return self.client

    async def settled(self) -> None:
        """Wait until the first attempt has succeeded or failed."""
        await self._settled.wait()

    def now(self) -> float:
        """The wall-clock time that the screens show."""
        return time.time()

    def try_now(self) -> None:
        self._hurry.set()

    async def run(self) -> None:
        """Connect and follow until cancelled."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                async with self._connect() as client:
                    self._client, self.next_try_at, pause = client, None, FIRST_PAUSE_S
                    self.mirror.permission = client.permission
                    self.mirror.name = client.welcome.run_name
                    await self._follow(client)
            except AgentrlError as error:
                self.mirror.lost(time.monotonic(), error.message, error.hint)
                self._settled.set()
            finally:
                self._client = None
            self.next_try_at = time.monotonic() + pause
            self._hurry.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _follow(self, client: Client) -> None:
        mirror = self.mirror

        def message_received() -> None:
            mirror.message_received(time.monotonic())

        async with aclosing(client.follow(on_message=message_received)) as changes:
            async for key, row in changes:
                if key == RESET:
                    mirror.begin()
                elif key == CAUGHT_UP:
                    mirror.permission = client.permission
                    mirror.whole(time.monotonic())
                    self._settled.set()
                elif key == SILENT:
                    mirror.lost(time.monotonic(), *_silence(mirror, client.target))
                    self._settled.set()
                else:
                    mirror.put(key, row)


def _silence(mirror: Mirror, target: Target) -> tuple[str, str]:
    """The reason why the feed is silent, and what to do. After `down` nothing needs to be done."""
    if mirror.run is not None and mirror.run.desired == "down":
        return "The run was taken down.", f"agentrl tui --playback {mirror.name} plays it; agentrl up starts it again."
    return "The coordinator is silent.", what_to_do(target)
