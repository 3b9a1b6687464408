"""Values too large for their document: both ends stay inline, the whole lies in chunks.

Invariants: the chunks are written before the document that shows the cut value, and have ids that say where they
belong, so writing them again changes nothing; a value is cut between characters, never inside of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentrl.store.database import Database
from agentrl.store.document_ids import within
from agentrl.store.documents import Chunk, to_bson

INLINE_BYTES = 256 << 10
END_BYTES = 32 << 10
"""The bytes of each end that stay inline."""
CHUNK_BYTES = 1 << 20


class Cut(NamedTuple):
    inline: str
    chunks: list[Chunk]


def cut(document: str, field: str, text: str, *, inline_bytes: int = INLINE_BYTES) -> Cut:
    """The stored form of a text: the text itself, or its ends and the chunks of the whole text."""
    if len(text) <= inline_bytes // 4:  # no character takes more than four bytes
        return Cut(text, [])
    data = text.encode(errors="surrogatepass")
    if len(data) <= inline_bytes:
        return Cut(text, [])
    end_bytes = min(END_BYTES, inline_bytes // 4)
    head = data[:end_bytes].decode(errors="ignore")
    tail = data[len(data) - end_bytes :].decode(errors="ignore")
    left_out = len(data) - len(head.encode()) - len(tail.encode())
    parts = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    chunks = [
        Chunk(id=f"{document}/{field}/{index}", document=document, field=field, index=index, data=part)
        for index, part in enumerate(parts)
    ]
    return Cut(f"{head}\n[… {left_out} bytes left out …]\n{tail}", chunks)


async def write(database: Database, chunks: list[Chunk]) -> None:
    for chunk in chunks:  # one by one: together they may exceed what one message may hold
        await database.insert_new("Chunk", [to_bson(chunk)])


async def cut_of(database: Database, records: Sequence[str]) -> set[tuple[str, str]]:
    """The cut documents of these Records, each with the field that was cut."""
    if not records:
        return set()
    ranges = {"$or": [{"_id": within(record)} for record in records]}
    documents = await database.find("Chunk", ranges, projection=["document", "field"])
    return {(chunk["document"], chunk["field"]) for chunk in documents}


async def whole(database: Database, document: str, field: str) -> str | None:
    """The whole text of a cut value; None if it was not cut, so the document has it."""
    parts = await database.find("Chunk", {"_id": within(f"{document}/{field}")})
    if not parts:
        return None
    return b"".join(part["data"] for part in sorted(parts, key=lambda part: part["index"])).decode(
        errors="surrogatepass"
    )
