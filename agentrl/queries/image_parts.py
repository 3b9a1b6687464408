"""Reads stored images for people, in parts that fit into a message.

Invariant: the image that was read last stays in memory until its last part was requested, so the database is read once
for all parts. Images never change.
"""

from __future__ import annotations

from agentrl.errors import UnknownNameError
from agentrl.protocol.data_commands import ImagePart, ReadImage
from agentrl.store import images
from agentrl.store.database import Database
from agentrl.store.documents import Image

PART_BYTES = 1 << 20


class ImageParts:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: Image | None = None

    async def part(self, args: ReadImage) -> ImagePart:
        found = self._last
        if found is None or found.id != args.id:
            found = (await images.get(self._database, [args.id])).get(args.id)
        if found is None:
            hint = (
                "Marks in texts name images by SHA-256; retention removes those of tools with the details of records."
            )
            raise UnknownNameError(f"There is no stored image {args.id}.", hint=hint)
        begin = max(0, args.offset)
        end = begin + PART_BYTES
        self._last = found if end < found.length else None
        return ImagePart(found.data[begin:end], found.length, found.format)
