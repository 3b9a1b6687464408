"""A recording in the place of a coordinator: the same face as a connection, with nobody behind it.

Invariants: nothing that is asked or sent goes anywhere; the time that the screens show is the recording's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NoReturn

from agentrl.client import Client
from agentrl.errors import NoCoordinatorError
from agentrl.protocol.messages import Permission
from tui.model.mirror import Mirror
from tui.model.playback import Playback, Source
from tui.model.recorded_steps import Telling

TICK_S = 0.1


class Replay:
    def __init__(
        self,
        mirror: Mirror,
        source: Source,
        *,
        name: str = "",
        at: float | None = None,
        speed: float = 1.0,
        what: str = "recording",
        run: str = "",
    ) -> None:
        """`run` is the run of this host that it was recorded of, if it is there."""
        self.mirror = mirror
        self.next_try_at: float | None = None
        self._run = run
        self.playback = Playback(source, mirror, speed=speed, what=what)
        self._begin_at = source.begin if at is None else at
        mirror.name = name
        mirror.permission = Permission.VIEWER

    @property
    def client(self) -> Client:
        self._nobody()

    async def to_ask(self) -> Client:
        self._nobody()

    def try_now(self) -> None:
        """There is nothing to try."""

    def now(self) -> float:
        return self.playback.position

    async def run(self) -> None:
        """For ever; cancelled at the end."""
        last = time.monotonic()
        self.playback.seek(self._begin_at, last)
        while True:
            await asyncio.sleep(TICK_S)
            clock = time.monotonic()
            self.playback.advance(clock - last, clock)
            last = clock

    async def read_back(self) -> None:
        """Read what the Steps of the moment that is shown want of earlier frames."""
        playback = self.playback
        while unread := playback.unread:
            for index, found in zip(unread, await asyncio.to_thread(_read, playback, unread), strict=True):
                playback.keep(index, found)

    def without(self, what: str) -> str:
        """That a recording does not have it, and what to do instead: only a run that is here is named in a command."""
        if not self._run:
            return f"A recording has no {what}, and its run is not known on this machine. A run of your own shows them."
        return (
            f"A recording has no {what}: agentrl tui --run {self._run} shows them while the run is up; "
            f"agentrl up --run {self._run} --read-only brings up what they are read from."
        )

    def without_logs(self) -> str:
        """These are files, which can be read without bringing anything up."""
        if not self._run:
            return self.without("logs")
        return f"A recording has no logs: agentrl logs UNIT --run {self._run} reads those that the run left."

    def _nobody(self) -> NoReturn:
        raise NoCoordinatorError(
            "This is a recording: it holds what the feed told, and nobody who could be asked.",
            hint=f"agentrl events --run {self._run} tells what the run left." if self._run else "",
        )


def _read(playback: Playback, frames: Sequence[int]) -> list[list[Telling]]:
    return [playback.tellings(index) for index in frames]
