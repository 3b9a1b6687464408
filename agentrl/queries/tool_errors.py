"""Errors of tools by what they say: what happened 192 times is one line, with samples to go on from.

Invariant: two errors are one kind if they come from the same tool, ended alike and their messages differ only in
numbers, names, quoted words, addresses and room between words. Calls that could not be read count like calls that
failed. The calls listed for a kind are those that were counted for it.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from agentrl.filters.evaluate import matches
from agentrl.filters.expressions import Expression
from agentrl.filters.fields import TOOL_CALLS
from agentrl.filters.mongo import to_mongo
from agentrl.filters.parser import parse
from agentrl.formatting.repeated_lines import pattern_of
from agentrl.protocol.data_commands import VARIES, ListFailedCalls, Page, ToolErrorGroup, ToolErrors, ToolErrorSample
from agentrl.queries import pages
from agentrl.queries.error_clusters import cluster
from agentrl.store import calls as stored_calls
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain

MALFORMED = "malformed"
"""The status of a call that could not be read, which no tool ever saw."""
READ_CHARS = 400
"""Of a message; what an error is stands at its beginning."""
SAMPLES = 3
MOST_KINDS = 2000
MOST_CALLS = 20_000
"""Calls of one kind that can be listed, the newest; their ids are sent to the database."""
OTHERS = "(other messages)"


KEPT_FACTOR = 20
"""An answer is kept for so many times the time that it took."""
KEPT_AT_MOST_S = 60.0
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[V]):
    value: V
    until: float


class Kind(NamedTuple):
    server: str
    tool: str
    status: str
    error_class: str
    message: str


@dataclass(slots=True)
class _Seen:
    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    samples: list[ToolErrorSample] = field(default_factory=list)
    calls: list[tuple[float, str]] | None = None
    """The time and the id of each call, if they will be listed."""

    def add(self, error: Plain) -> None:
        self.count += 1
        at = error["requested_at"].timestamp() if error.get("requested_at") else 0.0
        if at:
            self.first_at = min(self.first_at or at, at)
            self.last_at = max(self.last_at, at)
        if self.calls is not None:
            self.calls.append((at, error["id"]))
        if len(self.samples) < SAMPLES:
            self.samples.append(ToolErrorSample(error["record"], error["id"], error["result"], error.get("turn")))

    def join(self, other: _Seen) -> None:
        """Every name gives a sample, as long as there is room."""
        self.count += other.count
        self.first_at = min(filter(None, (self.first_at, other.first_at)), default=0.0)
        self.last_at = max(self.last_at, other.last_at)
        if other.calls is not None:
            self.calls = (self.calls or []) + other.calls
        both = [*self.samples, *other.samples]
        firsts = {sample.text: sample for sample in reversed(both)}
        self.samples = sorted(both, key=lambda sample: sample is not firsts[sample.text])[:SAMPLES]


class ToolErrorQueries:
    """Answers questions about failed calls.

    Invariant: finding the kinds takes a small share of the time, however often they are wanted. A screen wants them
    every few seconds, and each time all failed calls would be read.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._groups: dict[str, _Kept[list[ToolErrorGroup]]] = {}
        """By filter."""
        self._calls: dict[tuple[str, str], _Kept[list[str]]] = {}
        """The ids of calls by filter and message."""
        self._reading = asyncio.Lock()

    async def grouped(self, args: ToolErrors) -> list[ToolErrorGroup]:
        found = await self._kept(self._groups, args.filter, lambda: _groups(self._database, args.filter))
        return found[: max(1, args.limit)]

    async def calls(self, args: ListFailedCalls) -> Page:
        """Failed calls one by one: all that match the filter, or those that are counted under one message."""
        if not args.message:
            return await pages.page(self._database, "ToolCall", args)
        ids = await self._kept(
            self._calls, (args.filter, args.message), lambda: _calls_of(self._database, args.filter, args.message)
        )
        return await pages.page(self._database, "ToolCall", args, also={"_id": {"$in": ids}})

    async def _kept(self, answers: dict[K, _Kept[V]], wanted: K, read: Callable[[], Awaitable[V]]) -> V:
        async with self._reading:
            began = self._clock()
            for old in [one for one, kept in answers.items() if kept.until <= began]:
                del answers[old]
            if wanted not in answers:
                value = await read()
                ended = self._clock()
                kept_s = min(KEPT_FACTOR * (ended - began), KEPT_AT_MOST_S)
                answers[wanted] = _Kept(value, ended + kept_s)
            return answers[wanted].value


async def _groups(database: Database, filter: str) -> list[ToolErrorGroup]:
    named = await _kinds(database, filter)
    most_frequent = sorted(named.items(), key=lambda one: (-one[1].count, one[0]))
    return [
        ToolErrorGroup(*kind, found.count, found.first_at, found.last_at, tuple(found.samples))
        for kind, found in most_frequent
    ]


async def _calls_of(database: Database, filter: str, message: str) -> list[str]:
    kinds = await _kinds(database, filter, with_calls=True)
    found = [call for kind, seen in kinds.items() if kind.message == message for call in seen.calls or ()]
    return [id for _, id in heapq.nlargest(MOST_CALLS, found)]


async def _kinds(database: Database, filter: str, *, with_calls: bool = False) -> dict[Kind, _Seen]:
    query, now = parse(filter, TOOL_CALLS), await database.now()
    seen: dict[Kind, _Seen] = {}
    names_are_out = False
    async for error in _errors(database, query, now):
        kind = _kind(error)
        if kind not in seen and len(seen) >= MOST_KINDS and not names_are_out:
            # Beside the loop: it takes a while, and the steward has more to do than to answer.
            seen = await asyncio.to_thread(_without_names, seen)
            # Where that made no room it will not the next time, and it takes a while.
            names_are_out = len(seen) > MOST_KINDS // 2
        if kind not in seen and len(seen) >= MOST_KINDS:
            kind = kind._replace(message=OTHERS)
        seen.setdefault(kind, _Seen(calls=[] if with_calls else None)).add(error)
    return await asyncio.to_thread(_without_names, seen)


def _without_names(seen: Mapping[Kind, _Seen]) -> dict[Kind, _Seen]:
    """The kinds whose messages differ in a name only, as one."""
    of_tool: dict[Kind, list[str]] = defaultdict(list)
    for kind in seen:
        of_tool[kind._replace(message="")].append(kind.message)
    named = {tool: cluster(messages) for tool, messages in of_tool.items()}
    wider = {kind: kind._replace(message=named[kind._replace(message="")][kind.message]) for kind in seen}
    invented: dict[Kind, set[str]] = defaultdict(set)
    for kind in wider.values():
        invented[kind._replace(tool=VARIES)].add(kind.tool)
    made: dict[Kind, _Seen] = {}
    for kind, found in seen.items():
        one = wider[kind]
        # Tools that no server has are names that a model made up.
        any_tool = one._replace(tool=VARIES)
        of_one = any_tool if not one.server and len(invented[any_tool]) > 1 else one
        made.setdefault(of_one, _Seen()).join(found)
    return made


def _kind(error: Plain) -> Kind:
    text = error["result"][:READ_CHARS]
    if not error["server"] and error["tool"]:
        text = text.replace(error["tool"], VARIES)
    return Kind(error["server"], error["tool"], error["status"], error["error_class"], pattern_of(text))


async def _errors(database: Database, query: Expression, now: datetime) -> AsyncIterator[Plain]:
    text = {"$substrCP": ["$result", 0, READ_CHARS]}
    stages = [{"$match": stored_calls.FAILED_TOOLS}, *stored_calls.TOOL_ROWS, {"$match": stored_calls.FAILED_TOOL_ROW}]
    shown = ("record", "turn", "server", "tool", "status", "error_class", "requested_at")
    stages += [{"$match": to_mongo(query, now)}, {"$project": {**dict.fromkeys(shown, 1), "result": text}}]
    async for call in database.stream_aggregate(CALLS, stages):
        yield {**call, "id": call["_id"]}
    parts = ("record", "task", "turn", "owner", "parsed.name", "parsed.error", "began_at", "over_at")
    async for call in database.stream(CALLS, {"parsed.error": {"$gt": ""}}, projection=parts):
        for error in _malformed(call):
            if matches(query, error, now):
                yield error


def _malformed(turn: Plain) -> list[Plain]:
    """The tool calls of a turn that could not be parsed, as if they had been made."""
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
    }
    return [
        same | {"tool": call.get("name", ""), "result": call["error"][:READ_CHARS]}
        for call in turn["parsed"]
        if call.get("error")
    ]
