"""The calls of a toolbox: running ones and answered ones.

Invariants:
- An id means one call, while its session is open and for some time after, unless its session is forgotten.
- An answer that is dropped to save memory leaves its id, so that the call is refused and not run again.
- A refused call leaves no entry.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from agentrl.toolbox.api_messages import CallAnswer, CallConflictError

ANSWERS_KEPT_S = 300.0
"""How long the answers of a closed session are kept."""
MOST_KEPT_CHARS = 256 << 20
MOST_CLOSED = 20_000


@dataclass(eq=False)
class Call:
    id: str
    session: str
    tool: str
    arguments: dict[str, Any]
    task: asyncio.Task[CallAnswer] | None = None
    """None after the answer."""
    answer: CallAnswer | None = None
    """None while it runs, and after the answer was dropped."""
    again: bool = False
    """It was repeated in a fresh session."""

    def is_same(self, session: str, tool: str, arguments: dict[str, Any]) -> bool:
        return (self.session, self.tool, self.arguments) == (session, tool, arguments)


@dataclass
class _Closed:
    why: str
    at: float
    calls: list[str] = field(default_factory=list)


class CallRegistry:
    """All calls of open and of recently closed sessions."""

    def __init__(self, *, most_chars: int = MOST_KEPT_CHARS) -> None:
        self._calls: dict[str, Call] = {}
        self._of_session: dict[str, list[str]] = {}
        self._closed: OrderedDict[str, _Closed] = OrderedDict()
        self._kept: deque[Call] = deque()
        self._chars = 0
        self._most_chars = most_chars

    def find(self, id: str, session: str, tool: str, arguments: dict[str, Any]) -> Call | None:
        """The call with this id. Raises CallConflictError if the id belongs to another call."""
        call = self._calls.get(id)
        if call is not None and not call.is_same(session, tool, arguments):
            raise CallConflictError(f"The id {id} belongs to another call, of {call.tool} in {call.session}.")
        return call

    def begin(self, call: Call) -> None:
        self._calls[call.id] = call
        self._of_session.setdefault(call.session, []).append(call.id)

    def refused(self, call: Call) -> None:
        """Forget a call that did not run; its id may be used again."""
        self._calls.pop(call.id, None)
        ids = self._of_session.get(call.session, [])
        if call.id in ids:
            ids.remove(call.id)

    def answered(self, call: Call, answer: CallAnswer) -> None:
        call.answer, call.task = answer, None
        self._kept.append(call)
        self._chars += answer.size
        while self._chars > self._most_chars:
            oldest = self._kept.popleft()
            if oldest.answer is not None:
                self._chars -= oldest.answer.size
                oldest.answer = None

    def close(self, session: str, why: str) -> None:
        """Close a session: its answers are kept for a while, the reason for longer."""
        self._closed[session] = _Closed(why, time.monotonic(), self._of_session.pop(session, []))
        while len(self._closed) > MOST_CLOSED:
            self._drop(self._closed.popitem(last=False)[1])

    def forget(self, session: str) -> None:
        """Forget a closed session and its calls."""
        if (closed := self._closed.pop(session, None)) is not None:
            self._drop(closed)

    def closed(self, session: str) -> str:
        """Why this session was closed; empty if it is unknown."""
        known = self._closed.get(session)
        return "" if known is None else known.why

    def tidy(self) -> None:
        """Drop old answers of closed sessions."""
        before = time.monotonic() - ANSWERS_KEPT_S
        for closed in self._closed.values():
            if closed.at > before:
                break
            self._drop(closed)
        while self._kept and self._kept[0].id not in self._calls:
            self._forget_content(self._kept.popleft())

    def _drop(self, closed: _Closed) -> None:
        for id in closed.calls:
            call = self._calls.pop(id, None)
            if call is not None:
                self._forget_content(call)
        closed.calls = []

    def _forget_content(self, call: Call) -> None:
        if call.answer is not None:
            self._chars -= call.answer.size
            call.answer = None
