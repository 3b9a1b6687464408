"""Questions that the coordinator asks others, and the answers that come later.

Invariant: every question ends: by its answer, by its deadline, or because the one asked is gone.
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


class _Question(NamedTuple):
    unit: str
    """The life that was asked; empty for a host agent."""
    answer: asyncio.Future[Any]


class PendingRequests:
    """Questions under way."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._numbers = itertools.count(1)
        self._waiting: dict[str, _Question] = {}

    def answered(self, ask: str, answer: object) -> None:
        question = self._waiting.get(ask)
        if question is not None and not question.answer.done():
            question.answer.set_result(answer)

    def died(self, unit: str, incarnation: int) -> None:
        """Nobody waits for the answers of a life that has ended."""
        gone = f"{unit}.{incarnation}"
        for question in self._waiting.values():
            if question.unit == gone and not question.answer.done():
                question.answer.set_exception(UnavailableError(f"{gone} died before it answered.", hint="Ask again."))

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
        answer: messages.KnobPreviewed = await self._await(ask, sent, unit, UNIT_DEADLINE_S, f"{unit}.{incarnation}")
        return answer

    async def served(
        self, unit: str, incarnation: int, request: messages.Request, who: str, *, within_s: float
    ) -> msgspec.Raw:
        """Have a unit serve a request. Raises what it answered; UnavailableError if it is not there (any more)."""
        ask = str(next(self._numbers))
        question = served_commands.AskUnit(
            ask, request.id, request.name, request.args, who, dry_run=request.dry_run, within_s=within_s
        )
        if not self._peers.tell_unit(unit, incarnation, question):
            raise UnavailableError(f"{unit} is not connected.", hint="`agentrl status` shows since when.")
        answer: served_commands.UnitAnswer = await self._await(ask, True, unit, within_s, f"{unit}.{incarnation}")
        if answer.error:
            raise error_for(answer.code, answer.error, answer.hint)
        return answer.body

    async def _await(self, ask: str, sent: bool, who: str, deadline_s: float, life: str = "") -> Any:
        if not sent:
            raise NoCoordinatorError(f"{who} is not connected.", hint="`agentrl status` shows since when.")
        question = self._waiting[ask] = _Question(life, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(deadline_s):
                return await question.answer
        except TimeoutError:
            raise WaitTimeoutError(f"{who} did not answer within {deadline_s:g} s.") from None
        finally:
            del self._waiting[ask]
