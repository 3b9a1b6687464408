"""Sends requests of the coordinator to host agents and units, and waits for their answers.

Invariants:
- Every request ends: with its answer, at its deadline, or when the incarnation that received it ends.
- Only the peer that received a request can answer it, and its id cannot be guessed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentrl.control.messaging.peers import Known, Peers, host_address, unit_address
from agentrl.errors import NoCoordinatorError, UnavailableError, WaitTimeoutError, error_for
from agentrl.protocol import messages
from agentrl.protocol.messages import served_commands
from agentrl.protocol.wire import decode_as
from agentrl.transport.log_limiter import LogLimiter

T = TypeVar("T")
limited_log = LogLimiter(logging.getLogger(__name__))

HOST_DEADLINE_S = 20.0
UNIT_DEADLINE_S = 5.0


class _Pending(NamedTuple):
    address: str
    """The peer that received the request: `web-0.7`, or `host b`."""
    kind: type[Any]
    """The message that answers it."""
    answer: asyncio.Future[Any]


class PendingRequests:
    """Requests that wait for their answers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._waiting: dict[str, _Pending] = {}

    def answered(self, known: Known, ask: str, answer: object) -> None:
        pending = self._waiting.get(ask)
        if pending is None or pending.answer.done():
            return
        if pending.address != known.address or not isinstance(answer, pending.kind):
            limited_log.warning(known.address, "%s answered a request to %s", known.address, pending.address)
            return
        pending.answer.set_result(answer)

    def died(self, unit: str, incarnation: int) -> None:
        """Fail the requests to an incarnation that has ended."""
        gone = unit_address(unit, incarnation)
        for pending in self._waiting.values():
            if pending.address == gone and not pending.answer.done():
                pending.answer.set_exception(UnavailableError(f"{gone} died before it answered.", hint="Ask again."))

    async def host(
        self,
        host: str,
        what: messages.ReadLog | messages.ScanRun | messages.DumpStacks,
        kind: type[T],
        deadline_s: float = HOST_DEADLINE_S,
    ) -> T:
        """Send a request to a host agent. Raises AgentrlError if it fails."""
        ask = secrets.token_hex(16)
        sent = self._peers.send_to_host(host, messages.Ask(ask, what))
        who = f"The agent of host {host}"
        answer = await self._await(ask, sent, who, deadline_s, host_address(host), messages.Answer)
        if answer.error:
            raise error_for(answer.code, answer.error)
        return decode_as(kind, answer.body)

    async def unit(self, unit: str, incarnation: int, name: str, value: Any) -> messages.KnobPreviewed:
        """Query a unit for the effect of a knob's value."""
        ask = secrets.token_hex(16)
        sent = self._peers.send_to_unit(unit, incarnation, messages.PreviewKnob(ask, name, value))
        address = unit_address(unit, incarnation)
        return await self._await(ask, sent, unit, UNIT_DEADLINE_S, address, messages.KnobPreviewed)

    async def served(
        self, unit: str, incarnation: int, request: messages.Request, who: str, *, within_s: float
    ) -> msgspec.Raw:
        """Send a request that a unit serves. Raises the error in its answer, or UnavailableError if it is gone."""
        ask = secrets.token_hex(16)
        question = served_commands.AskUnit(
            ask, request.id, request.name, request.args, who, dry_run=request.dry_run, within_s=within_s
        )
        if not self._peers.send_to_unit(unit, incarnation, question):
            raise UnavailableError(f"{unit} is not connected.", hint="`agentrl status` shows since when.")
        address = unit_address(unit, incarnation)
        answer = await self._await(ask, True, unit, within_s, address, served_commands.UnitAnswer)
        if answer.error:
            raise error_for(answer.code, answer.error, answer.hint)
        return answer.body

    async def _await(self, ask: str, sent: bool, who: str, deadline_s: float, address: str, kind: type[T]) -> T:
        if not sent:
            raise NoCoordinatorError(f"{who} is not connected.", hint="`agentrl status` shows since when.")
        pending = self._waiting[ask] = _Pending(address, kind, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(deadline_s):
                answer: T = await pending.answer
                return answer
        except TimeoutError:
            raise WaitTimeoutError(f"{who} did not answer within {deadline_s:g} s.") from None
        finally:
            del self._waiting[ask]
