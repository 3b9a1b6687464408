"""The one connection of the console: follows a run's feed into the mirror, for as long as the console lives.

Invariants: whatever happens to the coordinator, the console stays; it tries again with growing pauses, and at once when
asked to; the run is looked up anew at every attempt, so one that was brought up again is found.
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
        """Clock of the next attempt, while nobody answers."""
        self._connect = connect
        self._client: Client | None = None
        self._hurry = asyncio.Event()
        self._settled = asyncio.Event()
        """Somebody was heard, or is known not to be."""

    @property
    def client(self) -> Client:
        """For a question or an act. Raises NoCoordinatorError while nobody is heard: whoever is gone is not asked."""
        if self._client is None or not self.mirror.link.connected:
            raise NoCoordinatorError(f"No coordinator answers: {self.mirror.link.why}", hint=self.mirror.link.hint)
        return self._client

    async def to_ask(self) -> Client:
        """For a question. While the first attempt is under way nobody is silent yet, so it is waited for."""
        await self._settled.wait()
        return self.client

    def now(self) -> float:
        """The time on the wall, as the screens show it."""
        return time.time()

    def try_now(self) -> None:
        self._hurry.set()

    async def run(self) -> None:
        """For ever; cancelled at the end."""
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

        def heard() -> None:
            mirror.heard(time.monotonic())

        async with aclosing(client.follow(on_heard=heard)) as changes:
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
    """Why nobody is heard, as far as was told, and what to do about it. Who was taken down is in no trouble."""
    if mirror.run is not None and mirror.run.desired == "down":
        return "The run was taken down.", f"agentrl tui --replay {mirror.name} plays it; agentrl up starts it again."
    return "The coordinator is silent.", what_to_do(target)
