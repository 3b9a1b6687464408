"""Serves the commands that the coordinator sends to a unit for its group.

Invariants:
- Every command gets one answer, which may be a refusal.
- Only a few commands are served concurrently and the others wait, so that the main loop stays responsive.
- No command is served past its deadline, and no answer is larger than a message.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from agentrl.errors import AgentrlError, ConfigError, RefusedError, UnavailableError, WaitTimeoutError
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.protocol.messages.served_commands import AskUnit, UnitAnswer
from agentrl.protocol.wire import raw

AT_ONCE = 4
MOST_WAITING = 64
MOST_BYTES = MAX_MESSAGE_BYTES - (64 << 10)
"""The rest is room for the envelope of an answer."""

Handler = Callable[[AskUnit], Awaitable[Any]]
Reply = Callable[[UnitAnswer], None]


class ServedCommands:
    """Runs the commands that this unit serves now."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The main loop, where it is asyncio's."""
        self._handler: Handler | None = None
        self._free = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[asyncio.Task[None], Callable[[], None]] = {}
        """By task: the function that refuses the command if the unit ends before the task does."""

    def offer(self, handler: Handler) -> None:
        if self.loop is None:
            raise ConfigError("Only a unit with an `async def` main loop can serve commands.")
        self._handler = handler

    def begin(self, question: AskUnit, reply: Reply) -> None:
        """Begin to serve a command. May be called from any thread."""
        if self._handler is None or self.loop is None or self.loop.is_closed():
            reply(_refusal(question, UnavailableError("This unit does not serve commands now.")))
        else:
            self.loop.call_soon_threadsafe(self._start, question, reply, self._handler)

    def close(self) -> None:
        """Refuse the running commands and serve no new ones."""
        self._handler = None
        for task, decline in list(self._under_way.items()):
            # Not in the task: the Bye of this unit follows before its loop runs again.
            decline()
            task.cancel()

    # ---- on the main loop ----

    def _start(self, question: AskUnit, reply: Reply, handler: Handler) -> None:
        if len(self._under_way) >= MOST_WAITING:
            busy = f"{len(self._under_way)} commands already wait for this unit."
            reply(_refusal(question, UnavailableError(busy, hint="Try again in a moment.")))
            return
        task = asyncio.create_task(self._serve(question, reply, handler), name=f"answer {question.name}")
        ending = UnavailableError("This unit is about to end.", hint="Try again in a moment.")
        self._under_way[task] = lambda: reply(_refusal(question, ending))
        task.add_done_callback(self._under_way.pop)

    async def _serve(self, question: AskUnit, reply: Reply, handler: Handler) -> None:
        try:
            async with asyncio.timeout(question.within_s), self._free:
                reply(_answer(question, await handler(question)))
        except AgentrlError as refused:
            reply(_refusal(question, refused))
        except TimeoutError:
            late = f"It took longer than {question.within_s:.0f} s."
            reply(_refusal(question, WaitTimeoutError(late, hint="Request less, or give it more time: --timeout.")))
        except Exception as broken:  # noqa: BLE001 - a request boundary; the log has the traceback
            traceback.print_exc(file=sys.stderr)
            reply(_refusal(question, AgentrlError(f"The unit failed ({broken!r}); its log has the traceback.")))


def _answer(question: AskUnit, result: Any) -> UnitAnswer:
    body = raw(result)
    size = len(memoryview(body))
    if size > MOST_BYTES:
        raise RefusedError(
            f"The answer to {question.name} has {size / (1 << 20):.1f} MiB, more than fits into a message.",
            hint="Request less: a smaller --limit, or a narrower --filter.",
        )
    return UnitAnswer(question.ask, body)


def _refusal(question: AskUnit, refused: AgentrlError) -> UnitAnswer:
    return UnitAnswer(question.ask, error=refused.message, code=int(refused.exit_code), hint=refused.hint)
