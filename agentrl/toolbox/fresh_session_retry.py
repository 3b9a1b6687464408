"""Repeats a failed call in a fresh session, to distinguish a broken tool from a call that breaks it.

Invariants:
- The second call has its own connection, which ends with it. No statistics and no breaker count it.
- The failure is the policy's fault only if both calls fail alike while the tool works for others and fails for none of
  them.
- "Others" are other sessions with other arguments, because all members of a group may make the call that breaks the
  tool.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from typing import NamedTuple

import msgspec

from agentrl.config.data_plane import ToolServer
from agentrl.errors import AgentrlError
from agentrl.policies.outcomes import fault_on_fresh_session
from agentrl.toolbox.api_messages import CallAnswer, NotAgain, ToolInfo
from agentrl.toolbox.call_outcomes import call_server
from agentrl.toolbox.call_registry import Call
from agentrl.toolbox.connection_starts import Connect, start_permit

RECENT_S = 60.0
MOST_REMEMBERED = 256
"""How many good calls of a tool are remembered, and as many failed ones."""
OPENED_WITHIN_S = 30.0
"""Includes the wait for other starts."""
FRESH = "~fresh"
"""Suffix of the ids of the second call, because an id never runs twice."""


class _Ended(NamedTuple):
    at: float
    session: str
    arguments: bytes


class FreshSessionRetry:
    """Judges the failed calls of one server; it gets every ended call."""

    def __init__(self, config: ToolServer, connect: Connect, gate: asyncio.Semaphore) -> None:
        """`gate` limits the servers that start at the same time."""
        self._config = config
        self._connect = connect
        self._gate = gate
        self._worked: dict[str, deque[_Ended]] = {}
        self._failed: dict[str, deque[_Ended]] = {}

    async def judge(self, call: Call, tool: ToolInfo, answer: CallAnswer, timeout_s: float) -> CallAnswer:
        """The answer, as the policy's fault if the second call fails alike. `timeout_s` limits each call."""
        if not self._config.try_again:
            return answer
        mine = _Ended(time.monotonic(), call.session, _digest(call))
        ended = self._failed if answer.error_class == "infrastructure" else self._worked
        ended.setdefault(tool.name, deque(maxlen=MOST_REMEMBERED)).append(mine)
        if answer.error_class != "infrastructure":
            return answer
        if why := self._why_not(tool, answer, mine):
            return self.unproven(answer, why)
        second = await self._fresh(call, tool, timeout_s)
        if second is None:
            return self.unproven(answer, "no: no session")
        answer = msgspec.structs.replace(answer, tried_again=second.status)
        works = _of_others(self._worked, tool, mine, since=mine.at) and not self._fails_others(tool, mine)
        fault = fault_on_fresh_session(
            (answer.status, answer.reason),
            (second.status, second.reason),
            works_for_others=works,
        )
        if fault == answer.error_class:
            return answer
        return msgspec.structs.replace(
            answer, error_class=fault, content=f"{answer.content} It failed alike in a fresh session."
        )

    def unproven(self, answer: CallAnswer, why: NotAgain) -> CallAnswer:
        """The answer of a call that is not repeated; a failure gets the reason."""
        wanted = self._config.try_again and answer.error_class == "infrastructure"
        return msgspec.structs.replace(answer, tried_again=why) if wanted else answer

    def _why_not(self, tool: ToolInfo, answer: CallAnswer, mine: _Ended) -> NotAgain | None:
        if answer.status not in ("timeout", "lost"):
            # A tool that reports its own failure needs no second call.
            return "no: told by the tool"
        if not answer.alone:
            return "no: not alone"
        return "no: fails for others" if self._fails_others(tool, mine) else None

    def _fails_others(self, tool: ToolInfo, mine: _Ended) -> bool:
        return _of_others(self._failed, tool, mine, since=time.monotonic() - RECENT_S)

    async def _fresh(self, call: Call, tool: ToolInfo, timeout_s: float) -> CallAnswer | None:
        """The second call. None if no fresh session could be opened."""
        connection = self._connect()
        try:
            async with asyncio.timeout(OPENED_WITHIN_S), start_permit(self._gate):
                await connection.open(OPENED_WITHIN_S)
            call.again = True
            return await call_server(
                connection,
                tool.name,
                call.arguments,
                self._config,
                session=f"{call.session}{FRESH}",
                call=f"{call.id}{FRESH}",
                timeout_s=timeout_s,
            )
        except (AgentrlError, TimeoutError):
            return None
        finally:
            await connection.close("its only call has ended")


def _of_others(ended: dict[str, deque[_Ended]], tool: ToolInfo, mine: _Ended, *, since: float) -> bool:
    return any(
        each.at > since and each.session != mine.session and each.arguments != mine.arguments
        for each in ended.get(tool.name, ())
    )


def _digest(call: Call) -> bytes:
    return hashlib.sha256(json.dumps(call.arguments, sort_keys=True).encode()).digest()
