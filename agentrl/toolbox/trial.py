"""A call that failed, once more in a session of its own: was it the server, or what was asked of it?

Invariants: the second call has a connection that nobody else uses and that ends with it, so it neither disturbs a
session nor learns from one; no statistics and no breaker count it. Only a call that fails alike while the tool works
for others, and fails for none of them, is the policy's doing: in an outage everything fails alike.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec

from agentrl.config.data import ToolServer
from agentrl.errors import AgentrlError
from agentrl.policies.outcomes import fault_on_fresh_session
from agentrl.toolbox.answers import Answer, ToolInfo
from agentrl.toolbox.asking import ask
from agentrl.toolbox.connection import START_WITHIN_S
from agentrl.toolbox.memory import Call
from agentrl.toolbox.servers import Connect

RECENT_S = 60.0
FRESH = "~fresh"
"""What the ids of the second call end with: the one that failed is not run twice under its own."""


class Trials:
    """Of one server. It is told of every call that ended."""

    def __init__(self, config: ToolServer, connect: Connect, gate: asyncio.Semaphore) -> None:
        """`gate` lets in who starts a server."""
        self._config = config
        self._connect = connect
        self._gate = gate
        self._worked_at: dict[str, float] = {}
        self._failed_at: dict[str, deque[float]] = {}

    async def judged(self, call: Call, tool: ToolInfo, answer: Answer) -> Answer:
        """The answer; with the policy's fault, if it fails alike."""
        at = time.monotonic()
        if answer.error_class != "infrastructure":
            self._worked_at[tool.name] = at
            return answer
        self._failed_at.setdefault(tool.name, deque(maxlen=2)).append(at)
        # What a tool says itself of its failure needs no proof.
        unexplained = answer.status in ("timeout", "lost") and answer.alone
        if not unexplained or not self._config.try_again or self._fails_others(tool.name):
            return answer
        second = await self._fresh(call, tool)
        works = self._worked_at.get(tool.name, 0.0) > at and not self._fails_others(tool.name)
        fault = fault_on_fresh_session(
            (answer.status, answer.reason),
            None if second is None else (second.status, second.reason),
            works_for_others=works,
        )
        if fault == answer.error_class:
            return answer
        return msgspec.structs.replace(
            answer, error_class=fault, content=f"{answer.content} It failed alike in a fresh session."
        )

    def _fails_others(self, tool: str) -> bool:
        """Whether it failed for more than one call lately."""
        failed = self._failed_at.get(tool, ())
        return sum(at > time.monotonic() - RECENT_S for at in failed) > 1

    async def _fresh(self, call: Call, tool: ToolInfo) -> Answer | None:
        """None if there is no session to be had."""
        connection = self._connect()
        try:
            async with self._gate:
                await connection.open(START_WITHIN_S)
            return await ask(
                connection,
                tool.name,
                call.arguments,
                self._config,
                session=f"{call.session}{FRESH}",
                call=f"{call.id}{FRESH}",
                timeout_s=self._config.timeout_s,
            )
        except AgentrlError:
            return None
        finally:
            await connection.close("its only call has ended")
