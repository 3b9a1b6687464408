"""The feed as one follower sees it.

Invariants: a row that was lost on the way is noticed (`stale`); between two looks only the newest row of a key is kept,
so a slow follower costs no memory and falls behind nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from agentrl.client.discovery import Target
from agentrl.errors import KeyRefusedError, ProtocolError
from agentrl.protocol import wire
from agentrl.protocol.feed import FeedBeat, FeedRow
from agentrl.transport.publisher import Subscriber

SILENT_S = 3.5
"""A feed beats every second; one that is silent for so long does not work."""

_log = logging.getLogger(__name__)


class FeedTail:
    """Subscribed inside `async with`. Look at `news` after `changed` said that there is something."""

    def __init__(self, target: Target, wanted: Callable[[str], bool]) -> None:
        self.epoch = ""
        self.seq = -1
        self.live = False
        """Something was heard: from now on every loss is noticed."""
        self.stale = False
        """Rows were lost, or the coordinator is another one: what is known has to be asked for again."""
        self.news: dict[str, tuple[int, msgspec.Raw]] = {}
        """Newest row by key, with its number."""
        self._wanted = wanted
        self._heard_at = time.monotonic()
        self._event = asyncio.Event()
        self._refusal: KeyRefusedError | None = None
        self._target = target
        self._subscriber = Subscriber(
            target.feed, key=target.key, on_message=self._on_message, on_refused=self._on_refused
        )

    async def __aenter__(self) -> Self:
        self._subscriber.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._subscriber.close()

    @property
    def silent(self) -> bool:
        return time.monotonic() - self._heard_at > SILENT_S

    async def changed(self, within_s: float) -> bool:
        """Waits for anything on the feed, beats included; False if nothing came in time.

        Raises KeyRefusedError if the key is not admitted any more: nothing will ever come.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._event.wait()
        except TimeoutError:
            return False
        if self._refusal is not None:
            raise self._refusal
        self._event.clear()
        return True

    def begin(self) -> None:
        """A snapshot is about to be asked for: losses up to now do not matter any more."""
        self.stale = False
        self.news.clear()

    def take(self) -> dict[str, tuple[int, msgspec.Raw]]:
        """All news since the last look."""
        taken, self.news = self.news, {}
        return taken

    def _on_refused(self, sentence: str) -> None:
        self._refusal = self._target.refused(sentence)
        self._event.set()

    def _on_message(self, frame: bytes) -> None:
        try:
            message = wire.decode_feed(frame)
        except ProtocolError as broken:
            # Not understood is lost: the rows have to be asked for again.
            _log.warning("the feed sent what this version does not understand: %s", broken)
            self.stale = True
            return
        if not isinstance(message, FeedRow | FeedBeat):
            return
        expected = self.seq + 1 if isinstance(message, FeedRow) else self.seq
        if self.live and (message.epoch != self.epoch or message.seq != expected):
            self.stale = True
            if message.epoch != self.epoch:
                self.news.clear()
        self.epoch, self.seq, self.live = message.epoch, message.seq, True
        self._heard_at = time.monotonic()
        if isinstance(message, FeedRow) and self._wanted(message.key):
            self.news[message.key] = (message.seq, message.value)
        self._event.set()
