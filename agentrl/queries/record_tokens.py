"""The tokens of one record, in parts: which tokens the model generated, with which weights and log-probs, and which
train.

Invariants: every token appears once, in the order of its tree; a part never exceeds a message, whatever is requested;
the tokenizer of the published weights makes texts from ids, and never ids from texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.chat.tokenizer import MAX_CHARACTER_BYTES, Tokenizer
from agentrl.errors import ConfigError
from agentrl.protocol.data_commands import RecordTokens, TokenPart, TokenStretch
from agentrl.queries import exports
from agentrl.queries.details import whole
from agentrl.queries.published_tokenizer import PublishedTokenizer
from agentrl.store import calls
from agentrl.store.database import Database, Plain
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask, load_if
from agentrl.tokens import version_runs

MOST_TOKENS = 10_000
LONGEST_TEXT = 100
"""Characters of one token."""
PRUNED = "Its tokens were removed: nothing that is kept could train them again."
NONE_YET = "No model call of it has ended."


async def part(database: Database, published: PublishedTokenizer, args: RecordTokens) -> TokenPart:
    await whole(database, "Record", args.id, hint="See `agentrl records list`.")
    answered = (await calls.with_tokens(database, [args.id], texts=False))[args.id]
    data = load_if(DBRecordData, await database.find_one("DBRecordData", {"_id": args.id}))
    segments = exports.segments(answered, data)
    if not segments:
        return TokenPart(note=PRUNED if data is not None and data.spans else NONE_YET)
    tokenizer, note = await _tokenizer(published)
    by_index = {call.index: call for call in answered}
    start, end = max(0, args.start), max(0, args.start) + max(1, min(args.limit, MOST_TOKENS))
    stretches, at = list[TokenStretch](), 0
    for place, segment in enumerate(segments):
        length = len(segment["ids"])
        first, last = max(start, at) - at, min(end, at + length) - at
        if first < last:
            call = by_index[segment["call"]]
            texts = await _spelt(tokenizer, segment["ids"], first, last)
            stretches.append(_stretch(place, segment, call, first, last, texts))
        at += length
    return TokenPart(tuple(stretches), end if end < at else None, at, note)


def _stretch(
    place: int, segment: Plain, call: DispatchedSamplingTask, first: int, last: int, texts: tuple[str, ...]
) -> TokenStretch:
    generated = segment["kind"] == "model"
    runs = version_runs.cut(segment["versions"], first, last - first) if generated else []
    return TokenStretch(
        segment=place,
        parent=segment["parent"],
        kind=segment["kind"],
        call=call.id,
        turn=call.turn if call.over_at is not None else -1,
        trains=segment["trains"],
        offset=first,
        ids=tuple(segment["ids"][first:last]),
        texts=texts,
        log_probs=tuple(segment["log_probs"][first:last]) if generated else (),
        versions=tuple((version, count) for version, count in runs),
    )


async def _tokenizer(published: PublishedTokenizer) -> tuple[Tokenizer | None, str]:
    try:
        found = await published.tokenizer()
    except ConfigError as unreadable:
        return None, f"There are only ids. {unreadable.message}"
    return found, "" if found else "There are only ids: no weights were published, so the tokenizer is not known."


async def _spelt(tokenizer: Tokenizer | None, ids: Sequence[int], first: int, last: int) -> tuple[str, ...]:
    if tokenizer is None:
        return ()
    # The ids that follow decide whether the last id completes a character.
    texts = await asyncio.to_thread(tokenizer.pieces, ids[: last + MAX_CHARACTER_BYTES], first)
    return tuple(text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…" for text in texts[: last - first])
