"""Answers questions about failed tool calls: by kind, and one by one.

Invariants:
- Calls that could not be parsed count like calls that failed. The calls listed for a kind are those that were counted.
- An answer is at most about two seconds old, and reading takes a small share of the time, however many calls failed:
  all failed calls are read rarely and in the background, and each answer adds the calls that failed since.
- Until all are read again, removed calls still count, and a call is missing if a sampler stored it later than
  `STORED_WITHIN` after it failed, for example in an outage of the database.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from agentrl.errors import AgentrlError
from agentrl.filters.evaluate import matches
from agentrl.filters.expressions import Expression
from agentrl.filters.fields import TOOL_CALLS
from agentrl.filters.mongo import to_mongo
from agentrl.filters.parser import parse
from agentrl.filters.tool_names import with_servers
from agentrl.protocol.data_commands import (
    MALFORMED,
    VARIES,
    ListCalls,
    Page,
    ToolErrorGroup,
    ToolErrors,
)
from agentrl.queries import pages, tool_calls
from agentrl.queries.tool_error_kinds import MOST_CALLS, READ_CHARS, ErrorCounts, Errors, Kind
from agentrl.store import calls as stored_calls
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain

STORED_WITHIN = timedelta(seconds=5)
"""Samplers store a failure one second after it happened; clocks of hosts differ a little."""
SHARE = 20
"""All calls are read again after this many times the time that it took."""
READ_AGAIN_S = 60.0
"""The longest time until all calls are read again."""
FRESH_S = 2.0
UNUSED_S = 60.0
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

_log = logging.getLogger(__name__)


class ToolErrorQueries:
    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._counts: dict[tuple[str, bool], _KeptCounts] = {}
        """By filter, and by whether calls are listed."""

    async def grouped(self, args: ToolErrors) -> list[ToolErrorGroup]:
        kinds = await self._kinds(args.filter)
        most_frequent = sorted(kinds.items(), key=lambda one: (-one[1].count, one[0]))[: max(1, args.limit)]
        return [
            ToolErrorGroup(*kind, found.count, found.first_at, found.last_at, tuple(found.samples))
            for kind, found in most_frequent
        ]

    async def calls(self, args: ListCalls) -> Page:
        """Tool calls one by one: all calls that match the filter, or those that are counted under one message."""
        ids = await self._counted_under(args.error, args.filter) if args.error else None
        page = await pages.page(self._database, "ToolCall", args, among=ids)
        await tool_calls.add_outcomes(self._database, list(page.rows))
        return page

    async def _counted_under(self, message: str, filter: str) -> list[str]:
        kinds = await self._kinds(filter, with_calls=True)
        same = [errors for kind, errors in kinds.items() if kind.message == message]
        if not same:
            # With another filter a kind may leave out fewer names, and people may type only a part of a message.
            similar = re.compile(".*".join(map(re.escape, message.split(VARIES))), re.IGNORECASE)
            same = [errors for kind, errors in kinds.items() if similar.search(kind.message)]
        return [id for _, id in heapq.nlargest(MOST_CALLS, (call for errors in same for call in errors.calls))]

    async def _kinds(self, filter: str, *, with_calls: bool = False) -> dict[Kind, Errors]:
        now = self._clock()
        for old in [key for key, kept in self._counts.items() if kept.used_at < now - UNUSED_S]:
            self._counts.pop(old).close()
        if (filter, with_calls) not in self._counts:
            query = with_servers(parse(filter, TOOL_CALLS))
            self._counts[filter, with_calls] = _KeptCounts(
                self._database, query, with_calls=with_calls, clock=self._clock
            )
        kept = self._counts[filter, with_calls]
        kept.used_at = now
        return await kept.kinds()


class _KeptCounts:
    def __init__(self, database: Database, query: Expression, *, with_calls: bool, clock: Callable[[], float]) -> None:
        self.used_at = 0.0
        self._read = partial(_Counted.read, database, query, with_calls=with_calls)
        self._clock = clock
        self._counted: _Counted | None = None
        self._took_s = 0.0
        self._read_again_at = 0.0
        self._answer: dict[Kind, Errors] = {}
        self._answer_until = 0.0
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def kinds(self) -> dict[Kind, Errors]:
        async with self._lock:
            began = self._clock()
            if began < self._answer_until:
                return self._answer
            if began >= self._read_again_at:
                if self._counted is None or SHARE * self._took_s <= FRESH_S:
                    await self._read_all()
                elif self._reading is None or self._reading.done():
                    self._reading = asyncio.create_task(self._read_in_background(), name="read failed tool calls")
            assert self._counted is not None
            added = self._clock()
            self._answer = await self._counted.with_new_errors()
            ended = self._clock()
            self._answer_until = ended + min(SHARE * (ended - added), FRESH_S)
            return self._answer

    async def _read_all(self) -> None:
        began = self._clock()
        self._counted = await self._read()
        self._took_s = self._clock() - began
        self._read_again_at = self._clock() + min(SHARE * self._took_s, READ_AGAIN_S)

    async def _read_in_background(self) -> None:
        try:
            await self._read_all()
        except AgentrlError as failed:
            _log.warning("Failed tool calls could not be read again: %s", failed.message)


class _Counted:
    """All errors up to some time, and how to find those after it."""

    def __init__(self, database: Database, query: Expression, *, with_calls: bool) -> None:
        self._database = database
        self._query = query
        self._with_calls = with_calls
        self._until = BEGINNING
        """All errors before this time are in `_old`."""
        self._old = ErrorCounts(with_calls=with_calls)
        self._unfinished: set[str] = set()
        """Calls in `_old` whose turn goes on; the turn is found again if another of its calls fails."""

    @classmethod
    async def read(cls, database: Database, query: Expression, *, with_calls: bool) -> _Counted:
        made = cls(database, query, with_calls=with_calls)
        until = await database.now() - STORED_WITHIN
        async for error in _errors(database, query, BEGINNING):
            if error["at"] < until:
                await made._count(error)
        made._until = until
        return made

    async def with_new_errors(self) -> dict[Kind, Errors]:
        until = await self._database.now() - STORED_WITHIN
        new = ErrorCounts(with_calls=self._with_calls)
        found = [error async for error in _errors(self._database, self._query, self._until)]
        counted = frozenset(self._unfinished)
        for error in found:
            if error["id"] in counted:
                continue
            if error["at"] < until:
                await self._count(error)
            else:
                await new.add(error)
        self._until = until
        return await self._old.by_kind(new)

    async def _count(self, error: Plain) -> None:
        await self._old.add(error)
        if not error.get("over_at"):
            self._unfinished.add(error["id"])


async def _errors(database: Database, query: Expression, since: datetime) -> AsyncIterator[Plain]:
    """`at` is the time by which an error is found."""
    now = await database.now()
    text = {"$substrCP": ["$result", 0, READ_CHARS]}
    failed = {"failed_at": {"$type": "date", "$gte": since}}
    stages = [{"$match": failed}, *stored_calls.tool_row_stages("failed_at", "over_at")]
    stages += [{"$match": stored_calls.FAILED_TOOL_ROW}, {"$match": to_mongo(query, now)}]
    shown = ("record", "turn", "server", "tool", "status", "error_class", "requested_at", "failed_at", "over_at")
    stages += [{"$project": {**dict.fromkeys(shown, 1), "result": text}}]
    async for call in database.stream_aggregate(CALLS, stages):
        yield {**call, "id": call["_id"], "at": call["failed_at"]}
    parts = ("record", "task", "turn", "owner", "parsed.name", "parsed.error", "began_at", "done_at", "over_at")
    malformed = {"parsed.error": {"$gt": ""}} | ({} if since == BEGINNING else {"done_at": {"$gte": since}})
    async for call in database.stream(CALLS, malformed, sort=[("done_at", 1)], projection=parts):
        for error in _malformed(call):
            if matches(query, error, now):
                yield error | {"at": call.get("done_at") or BEGINNING, "over_at": call.get("over_at")}


def _malformed(turn: Plain) -> list[Plain]:
    """The tool calls of a turn that could not be parsed, in the form of calls that were made."""
    same = {
        "id": turn["_id"],
        "record": turn["record"],
        "task": turn.get("task", ""),
        "turn": turn["turn"],
        "owner": turn.get("owner", ""),
        "requested_at": turn.get("began_at") or turn.get("over_at"),
        "done_at": turn.get("over_at"),
        "server": "",
        "status": MALFORMED,
        "error_class": "policy",
        "failed": True,
    }
    return [
        same | {"tool": call.get("name", ""), "result": call["error"][:READ_CHARS]}
        for call in turn["parsed"]
        if call.get("error")
    ]
