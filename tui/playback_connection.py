"""Plays a recording through the interface of a connection, in place of a coordinator.

Invariants:
- Queries and commands are refused.
- The screens show the time of the recording.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NoReturn

from agentrl.client import Client
from agentrl.errors import NoCoordinatorError
from agentrl.protocol.messages import Permission
from agentrl.recording.reader import Recording
from tui.model.mirror import Mirror
from tui.model.playback import Playback
from tui.model.recorded_steps import StepReport

TICK_S = 0.1


class PlaybackConnection:
    def __init__(
        self,
        mirror: Mirror,
        source: Recording,
        *,
        name: str = "",
        at: float | None = None,
        speed: float = 1.0,
        what: str = "recording",
        run: str = "",
    ) -> None:
        """`run` is the recorded run, if it is on this host."""
        self.mirror = mirror
        self.next_try_at: float | None = None
        self._run = run
        self.playback = Playback(source, mirror, speed=speed, what=what)
        self._begin_at = source.begin if at is None else at
        mirror.name = name
        mirror.permission = Permission.VIEWER

    @property
    def client(self) -> Client:
        self._refuse()

    async def to_ask(self) -> Client:
        self._refuse()

    def try_now(self) -> None:
        """Does nothing: a recording needs no connection."""

    def now(self) -> float:
        return self.playback.position

    async def run(self) -> None:
        """Plays until cancelled."""
        last = time.monotonic()
        self.playback.seek(self._begin_at, last)
        while True:
            await asyncio.sleep(TICK_S)
            clock = time.monotonic()
            self.playback.advance(clock - last, clock)
            last = clock

    async def read_back(self) -> None:
        """Reads earlier frames until the Steps of the position are complete."""
        playback = self.playback
        while unread := playback.unread:
            for index, found in zip(unread, await asyncio.to_thread(_read, playback, unread), strict=True):
                playback.keep(index, found)

    def without(self, what: str) -> str:
        """The error for a query that a recording cannot answer, with a hint. Commands are named only for a run of this
        host.
        """
        if not self._run:
            return f"A recording has no {what}, and its run is not known on this machine. A run of your own shows them."
        return (
            f"A recording has no {what}: agentrl tui --run {self._run} shows them while the run is up; "
            f"agentrl up --run {self._run} --read-only brings up what they are read from."
        )

    def without_logs(self) -> str:
        """Logs are files, which can be read while the run is down."""
        if not self._run:
            return self.without("logs")
        return f"A recording has no logs: agentrl logs UNIT --run {self._run} reads those that the run left."

    def _refuse(self) -> NoReturn:
        raise NoCoordinatorError(
            "This is a recording of the feed. It answers no queries.",
            hint=f"agentrl events --run {self._run} shows the events of the run." if self._run else "",
        )


def _read(playback: Playback, frames: Sequence[int]) -> list[list[StepReport]]:
    return [playback.read_steps(index) for index in frames]
