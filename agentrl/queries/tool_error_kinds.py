"""Counts errors of tools by their messages: an error that happened 192 times is one line, with samples.

Invariants: two errors are one kind if they come from the same tool, ended alike and their messages differ only in
numbers, names, quoted words, addresses and white space.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentrl.formatting.repeated_lines import pattern_of
from agentrl.protocol.data_commands import VARIES, ToolErrorSample
from agentrl.store.database import Plain

_NAMES = 3
"""At least this many different words in one place count as names; two may be two different errors."""
_MIN_SHARED_WORDS = 2
_MAX_WORDS = 60


def cluster(patterns: Iterable[str]) -> Mapping[str, str]:
    """The cluster of each message pattern (`pattern_of`).

    Messages form a cluster if several of them differ in a single word, or only after a colon: `no such item: …`.
    """
    unique = list(dict.fromkeys(patterns))
    candidates: dict[str, list[str]] = defaultdict(list)
    for pattern in unique:
        for wider in _wider(pattern):
            candidates[wider].append(pattern)
    found = {pattern: pattern for pattern in unique}
    # The largest cluster takes its members first; a message joins only one cluster.
    several = ((wider, members) for wider, members in candidates.items() if len(members) > 1)
    for wider, members in sorted(several, key=lambda one: (-len(one[1]), one[0])):
        left = [pattern for pattern in members if found[pattern] == pattern]
        if len(left) >= _min_members(wider, left):
            found |= dict.fromkeys(left, wider)
    return found


def _wider(pattern: str) -> Iterator[str]:
    """The pattern with each of its words left out in turn, and with what follows its last colon left out."""
    words = pattern.split(" ")
    if len(words) <= _MAX_WORDS:
        real = [_is_word(word) for word in words]
        many, start = sum(real), 0
        for word, is_real in zip(words, real, strict=True):
            if many - is_real >= _MIN_SHARED_WORDS:
                yield f"{pattern[:start]}{VARIES}{pattern[start + len(word) :]}"
            start += len(word) + 1
    head, colon, _ = pattern.rpartition(": ")
    # A single word before a colon is the name of an error class; what went wrong follows it.
    enough_words = colon and sum(_is_word(word) for word in head.split(" ")) >= _MIN_SHARED_WORDS
    if enough_words and (wider := f"{head}: {VARIES}") != " ".join([*words[:-1], VARIES]):
        yield wider


def _is_word(text: str) -> bool:
    return any(sign.isalpha() for sign in text)


def _min_members(wider: str, members: Sequence[str]) -> int:
    """Two if single words follow a colon, because those are names; otherwise three."""
    is_name = wider.endswith(f": {VARIES}") and all(" " not in member.removeprefix(wider[:-1]) for member in members)
    return 2 if is_name else _NAMES


READ_CHARS = 400
"""Characters of a message that are read; its beginning says which error it is."""
SAMPLES = 3
MOST_KINDS = 2000
MOST_CALLS = 20_000
"""The most calls of one kind that can be listed, the newest ones; their ids are sent to the database."""
OTHERS = "(other messages)"


class Kind(NamedTuple):
    server: str
    tool: str
    status: str
    error_class: str
    message: str


@dataclass(slots=True)
class Errors:
    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    samples: list[ToolErrorSample] = field(default_factory=list)
    calls: list[tuple[float, str]] = field(default_factory=list)
    """The time and the id of each call, if they will be listed."""

    def add(self, error: Plain, *, with_call: bool) -> None:
        self.count += 1
        at = error["requested_at"].timestamp() if error.get("requested_at") else 0.0
        if at:
            self.first_at = min(self.first_at or at, at)
            self.last_at = max(self.last_at, at)
        if with_call:
            self.calls.append((at, error["id"]))
            if len(self.calls) > 2 * MOST_CALLS:
                self.calls = heapq.nlargest(MOST_CALLS, self.calls)
        if len(self.samples) < SAMPLES:
            self.samples.append(ToolErrorSample(error["record"], error["id"], error["result"], error.get("turn")))

    def join(self, other: Errors) -> None:
        """Adds other errors. Samples with different texts are kept first."""
        self.count += other.count
        self.first_at = min(filter(None, (self.first_at, other.first_at)), default=0.0)
        self.last_at = max(self.last_at, other.last_at)
        self.calls = self.calls + other.calls
        both = [*self.samples, *other.samples]
        firsts = {sample.text: sample for sample in reversed(both)}
        self.samples = sorted(both, key=lambda sample: sample is not firsts[sample.text])[:SAMPLES]


class ErrorCounts:
    def __init__(self, *, with_calls: bool = False) -> None:
        self._with_calls = with_calls
        self._errors: dict[Kind, Errors] = {}
        self._names_are_out = False

    async def add(self, error: Plain) -> None:
        kind = _kind(error)
        if kind not in self._errors and len(self._errors) >= MOST_KINDS and not self._names_are_out:
            # In a thread: it takes a while, and the steward has other work in its event loop.
            self._errors = await asyncio.to_thread(_without_names, self._errors)
            # If that freed little room, it would not help the next time either.
            self._names_are_out = len(self._errors) > MOST_KINDS // 2
        if kind not in self._errors and len(self._errors) >= MOST_KINDS:
            kind = kind._replace(message=OTHERS)
        self._errors.setdefault(kind, Errors()).add(error, with_call=self._with_calls)

    async def by_kind(self, more: ErrorCounts) -> dict[Kind, Errors]:
        """These errors and `more`; kinds that differ only in a name are merged."""
        both = dict(self._errors)
        for kind, errors in more._errors.items():
            both[kind] = Errors()
            both[kind].join(self._errors.get(kind, Errors()))
            both[kind].join(errors)
        return await asyncio.to_thread(_without_names, both)


def _without_names(errors: Mapping[Kind, Errors]) -> dict[Kind, Errors]:
    """Merges kinds whose messages differ only in a name."""
    of_tool: dict[Kind, list[str]] = defaultdict(list)
    for kind in errors:
        of_tool[kind._replace(message="")].append(kind.message)
    named = {tool: cluster(messages) for tool, messages in of_tool.items()}
    wider = {kind: kind._replace(message=named[kind._replace(message="")][kind.message]) for kind in errors}
    invented: dict[Kind, set[str]] = defaultdict(set)
    for kind in wider.values():
        invented[kind._replace(tool=VARIES)].add(kind.tool)
    made: dict[Kind, Errors] = {}
    for kind, found in errors.items():
        one = wider[kind]
        # A tool that no server has is a name that a model invented.
        any_tool = one._replace(tool=VARIES)
        of_one = any_tool if not one.server and len(invented[any_tool]) > 1 else one
        made.setdefault(of_one, Errors()).join(found)
    return made


def _kind(error: Plain) -> Kind:
    text = error["result"][:READ_CHARS]
    if not error["server"] and error["tool"]:
        text = text.replace(error["tool"], VARIES)
    return Kind(error["server"], error["tool"], error["status"], error["error_class"], pattern_of(text))
