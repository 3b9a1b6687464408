"""Implements one subscription to the feed.

Invariants:
- A lost row is detected (`stale`), and so is a snapshot from before the first message (`complete_after`).
- Between two calls of `take` only the newest row of each key is kept, so a slow follower needs no more memory and skips
  the rows in between.
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
"""The feed sends a beat every second; without any message for this long it counts as silent."""

_log = logging.getLogger(__name__)


class FeedSubscription:
    """Subscribed inside `async with`. Call `take` after `changed` returned True."""

    def __init__(self, target: Target, wanted: Callable[[str], bool]) -> None:
        self.epoch = ""
        self.seq = -1
        self.live = False
        """Whether a message has arrived; from then on every loss is detected."""
        self.complete_after = -1
        """The number of the last row of this epoch that may have been sent before the subscription reached the
        coordinator. Each coordinator counts from the beginning, so a new epoch has a number of its own."""
        self.stale = False
        """Whether a new snapshot is needed, because rows were lost or the coordinator was restarted."""
        self.news: dict[str, tuple[int, msgspec.Raw]] = {}
        """The newest row of each key, with its sequence number."""
        self._wanted = wanted
        self._received_at = time.monotonic()
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
        return time.monotonic() - self._received_at > SILENT_S

    async def changed(self, within_s: float) -> bool:
        """Waits for any message of the feed, including beats. Returns False if none arrived in time.

        Raises KeyRefusedError if the key is no longer accepted.
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
        """Call this before requesting a snapshot: earlier losses no longer matter."""
        self.stale = False
        self.news.clear()

    def take(self) -> dict[str, tuple[int, msgspec.Raw]]:
        """The newest rows since the last call."""
        taken, self.news = self.news, {}
        return taken

    def _on_refused(self, sentence: str) -> None:
        self._refusal = self._target.refused(sentence)
        self._event.set()

    def _on_message(self, frame: bytes) -> None:
        try:
            message = wire.decode_feed(frame)
        except ProtocolError as broken:
            # A message that cannot be read counts as a lost row.
            _log.warning("the feed sent a message that this version cannot read: %s", broken)
            self.stale = True
            return
        if not isinstance(message, FeedRow | FeedBeat):
            return
        seq_before = message.seq - 1 if isinstance(message, FeedRow) else message.seq
        new_epoch = message.epoch != self.epoch
        if new_epoch:
            self.complete_after = seq_before
            self.news.clear()
        if self.live and (new_epoch or seq_before != self.seq):
            self.stale = True
        self.epoch, self.seq, self.live = message.epoch, message.seq, True
        self._received_at = time.monotonic()
        if isinstance(message, FeedRow) and self._wanted(message.key):
            self.news[message.key] = (message.seq, message.value)
        self._event.set()
