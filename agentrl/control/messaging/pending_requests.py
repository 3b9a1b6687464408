"""Sends requests of the coordinator to host agents and units, and waits for their answers.

Invariants:
- Every request ends: with its answer, at its deadline, or when the incarnation that received it ends.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentrl.control.messaging.peers import Peers
from agentrl.errors import NoCoordinatorError, UnavailableError, WaitTimeoutError, error_for
from agentrl.protocol import messages
from agentrl.protocol.messages import served_commands
from agentrl.protocol.wire import decode_as

T = TypeVar("T")

HOST_DEADLINE_S = 20.0
UNIT_DEADLINE_S = 5.0


class _Pending(NamedTuple):
    incarnation: str
    """The incarnation that received the request, such as `web-0.7`; empty for a host agent."""
    answer: asyncio.Future[Any]


class PendingRequests:
    """Requests that wait for their answers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._numbers = itertools.count(1)
        self._waiting: dict[str, _Pending] = {}

    def answered(self, ask: str, answer: object) -> None:
        pending = self._waiting.get(ask)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def died(self, unit: str, incarnation: int) -> None:
        """Fail the requests to an incarnation that has ended."""
        gone = f"{unit}.{incarnation}"
        for pending in self._waiting.values():
            if pending.incarnation == gone and not pending.answer.done():
                pending.answer.set_exception(UnavailableError(f"{gone} died before it answered.", hint="Ask again."))

    async def host(
        self,
        host: str,
        what: messages.ReadLog | messages.ScanRun | messages.DumpStacks,
        kind: type[T],
        deadline_s: float = HOST_DEADLINE_S,
    ) -> T:
        """Send a request to a host agent. Raises AgentrlError if it fails."""
        ask = str(next(self._numbers))
        sent = self._peers.send_to_host(host, messages.Ask(ask, what))
        answer: messages.Answer = await self._await(ask, sent, f"The agent of host {host}", deadline_s)
        if answer.error:
            raise error_for(answer.code, answer.error)
        return decode_as(kind, answer.body)

    async def unit(self, unit: str, incarnation: int, name: str, value: Any) -> messages.KnobPreviewed:
        """Query a unit for the effect of a knob's value."""
        ask = str(next(self._numbers))
        sent = self._peers.send_to_unit(unit, incarnation, messages.PreviewKnob(ask, name, value))
        answer: messages.KnobPreviewed = await self._await(ask, sent, unit, UNIT_DEADLINE_S, f"{unit}.{incarnation}")
        return answer

    async def served(
        self, unit: str, incarnation: int, request: messages.Request, who: str, *, within_s: float
    ) -> msgspec.Raw:
        """Send a request that a unit serves. Raises the error in its answer, or UnavailableError if it is gone."""
        ask = str(next(self._numbers))
        question = served_commands.AskUnit(
            ask, request.id, request.name, request.args, who, dry_run=request.dry_run, within_s=within_s
        )
        if not self._peers.send_to_unit(unit, incarnation, question):
            raise UnavailableError(f"{unit} is not connected.", hint="`agentrl status` shows since when.")
        answer: served_commands.UnitAnswer = await self._await(ask, True, unit, within_s, f"{unit}.{incarnation}")
        if answer.error:
            raise error_for(answer.code, answer.error, answer.hint)
        return answer.body

    async def _await(self, ask: str, sent: bool, who: str, deadline_s: float, incarnation: str = "") -> Any:
        if not sent:
            raise NoCoordinatorError(f"{who} is not connected.", hint="`agentrl status` shows since when.")
        pending = self._waiting[ask] = _Pending(incarnation, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(deadline_s):
                return await pending.answer
        except TimeoutError:
            raise WaitTimeoutError(f"{who} did not answer within {deadline_s:g} s.") from None
        finally:
            del self._waiting[ask]
