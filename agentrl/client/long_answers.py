"""Reads answers that are longer than one message: the tokens of a record, exported trajectories, the attempts of an
evaluation, and lists of several pages.

Invariants:
- A caller that stops at any point has whole segments and whole lines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from agentrl.client.command_methods import CommandMethods
from agentrl.errors import RefusedError
from agentrl.protocol.data_commands import TokenStretch
from agentrl.protocol.evaluation_commands import Attempt

T = TypeVar("T")
ANSWER_S = 60.0
ATTEMPTS_AT_ONCE = 4_000


class Tokens(msgspec.Struct, frozen=True):
    """The token tree of a record, depth first."""

    segments: tuple[TokenStretch, ...]
    total: int
    """Tokens of the whole tree."""
    note: str = ""
    """The missing part, and the reason."""


async def tokens(client: CommandMethods, record: str, *, most: int = 0, deadline_s: float = ANSWER_S) -> Tokens:
    """All segments; with `most`, only those that begin before that many tokens."""
    found = dict[int, TokenStretch]()
    start: int | None = 0
    total, note = 0, ""
    while start is not None and not (most and start >= most):
        part = await client.record_tokens(record, start=start, deadline_s=deadline_s)
        for stretch in part.stretches:
            begun = found.get(stretch.segment)
            found[stretch.segment] = stretch if begun is None else _joined(begun, stretch)
        start, total, note = part.next, part.total, part.note
    if start is not None:
        left_out = f"Only the first {start} of {total} tokens are shown."
        note = f"{note} {left_out}" if note else left_out
    return Tokens(tuple(found[place] for place in sorted(found)), total, note)


def _joined(one: TokenStretch, next: TokenStretch) -> TokenStretch:
    versions = one.versions + next.versions
    if one.versions and next.versions and one.versions[-1][0] == next.versions[0][0]:
        (version, count), (_, more) = one.versions[-1], next.versions[0]
        versions = (*one.versions[:-1], (version, count + more), *next.versions[1:])
    return msgspec.structs.replace(
        one,
        ids=one.ids + next.ids,
        texts=one.texts + next.texts,
        log_probs=one.log_probs + next.log_probs,
        versions=versions,
    )


class Lines(NamedTuple):
    """A part of an export."""

    data: bytes
    records: int
    after: str
    """The id after which the rest of the export begins."""


async def exported(
    client: CommandMethods,
    *,
    filter: str = "",
    form: Literal["trajectories", "dataset"] = "trajectories",
    after: str = "",
    limit: int | None = None,
    deadline_s: float = ANSWER_S,
) -> AsyncIterator[Lines]:
    """Whole trajectories, or rows of a dataset, as JSON lines, oldest end first; at most `limit` of them."""
    begun, offset, end, left = b"", 0, False, limit
    while not end and left != 0:
        part = await client.export_records(
            filter=filter, form=form, after=after, offset=offset, limit=left or 0, deadline_s=deadline_s
        )
        left = None if left is None else left - part.records
        whole, newline, rest = part.data.rpartition(b"\n")
        if newline:
            yield Lines(begun + whole + newline, part.records, part.after)
            begun = rest
        else:
            begun += part.data
        after, offset, end = part.after, part.offset, part.end


async def evaluated(client: CommandMethods, version: int, *, deadline_s: float = ANSWER_S) -> list[Attempt]:
    """All ended attempts of the evaluation of a version of the run."""

    async def ask(after: str, limit: int) -> tuple[Sequence[Attempt], str]:
        part = await client.show_evaluation(version, after=after, limit=limit, deadline_s=deadline_s)
        return part.attempts, part.attempts[-1].key if part.more else ""

    return await in_parts(ask, at_once=ATTEMPTS_AT_ONCE)


async def in_parts(
    ask: Callable[[str, int], Awaitable[tuple[Sequence[T], str]]], *, at_once: int, limit: int | None = None
) -> list[T]:
    """A list from as many answers as necessary; if an answer would exceed a message, it is asked for with fewer
    entries. `ask` gets the position to continue from and the most entries to return; it returns entries and the next
    position, which is empty at the end.
    """
    found: list[T] = []
    after = ""
    while limit is None or len(found) < limit:
        wanted = at_once if limit is None else min(at_once, limit - len(found))
        try:
            part, after = await ask(after, wanted)
        except RefusedError:
            if at_once == 1:
                raise
            at_once = max(1, at_once // 4)
            continue
        found += part
        if not after:
            break
    return found
