"""Questions that the coordinator asks others, and the answers that come later.

Invariant: every question ends: by its answer, by its deadline, or because the one asked is gone.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, TypeVar

from agentrl.control.books.peers import Peers
from agentrl.errors import NoCoordinatorError, WaitTimeoutError, error_for
from agentrl.protocol import messages
from agentrl.protocol.wire import decode_as

T = TypeVar("T")

HOST_DEADLINE_S = 20.0
UNIT_DEADLINE_S = 5.0


class Asks:
    """Questions under way."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    def answered(self, ask: str, answer: object) -> None:
        future = self._waiting.get(ask)
        if future is not None and not future.done():
            future.set_result(answer)

    async def host(
        self,
        host: str,
        what: messages.ReadLog | messages.ScanRun | messages.DumpStacks,
        kind: type[T],
        deadline_s: float = HOST_DEADLINE_S,
    ) -> T:
        """Ask a host agent. Raises AgentrlError with one sentence."""
        ask = str(next(self._numbers))
        sent = self._peers.tell_host(host, messages.Ask(ask, what))
        answer: messages.Answer = await self._await(ask, sent, f"The agent of host {host}", deadline_s)
        if answer.error:
            raise error_for(answer.code, answer.error)
        return decode_as(kind, answer.body)

    async def unit(self, unit: str, incarnation: int, name: str, value: Any) -> messages.KnobPreviewed:
        """Ask a unit what a knob's value would do."""
        ask = str(next(self._numbers))
        sent = self._peers.tell_unit(unit, incarnation, messages.PreviewKnob(ask, name, value))
        answer: messages.KnobPreviewed = await self._await(ask, sent, unit, UNIT_DEADLINE_S)
        return answer

    async def _await(self, ask: str, sent: bool, who: str, deadline_s: float) -> Any:
        if not sent:
            raise NoCoordinatorError(f"{who} is not connected.", hint="`agentrl status` shows since when.")
        future = self._waiting[ask] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError:
            raise WaitTimeoutError(f"{who} did not answer within {deadline_s:g} s.") from None
        finally:
            del self._waiting[ask]
