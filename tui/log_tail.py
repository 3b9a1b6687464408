"""Follows the log of a unit over rotations and from one incarnation into the next.

Invariants:
- Every line is returned once and complete, for any cut of the ranges.
- A remark marks a lost part or a new incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.client import Client
from agentrl.formatting.amounts import counted
from agentrl.formatting.log_lines import Lines

FIRST_BYTES = 256 << 10
"""How much of the past is read first."""
CHUNK_BYTES = 256 << 10


@dataclass(slots=True)
class NewLines:
    lines: list[str] = field(default_factory=list)
    asides: list[str] = field(default_factory=list)
    """Remarks about the log itself, which follow the lines."""


class LogTail:
    """Reads the log of one unit. `life` 0 follows the present incarnation and its successors; another one is read to
    its end.
    """

    def __init__(self, unit: str, life: int = 0) -> None:
        self.unit = unit
        self.incarnation = 0
        """The incarnation that is read; 0 before the first answer."""
        self._life = life
        self._offset = -FIRST_BYTES
        self._rotation = 0
        self._joined = Lines()
        self._idle = False

    async def news(self, client: Client) -> NewLines:
        """The lines written since the last call."""
        first = not self.incarnation
        chunk = await client.read_logs(
            self.unit, incarnation=self._life if first else self.incarnation, offset=self._offset, limit=CHUNK_BYTES
        )
        found = NewLines()
        if first:
            self.incarnation, self._rotation = chunk.incarnation, chunk.rotation
            found.asides.append(f"{self.unit}.{chunk.incarnation}")
        elif chunk.rotation != self._rotation or chunk.size < self._offset:
            self._rotation, self._offset = chunk.rotation, 0
            found.lines += self._joined.end()
            found.asides.append("the log was cut; what is left of it follows")
            return found
        lines = self._joined.feed(chunk.data)
        if first and chunk.offset > 0:
            # The first line began before the range that was read.
            del lines[:1]
            found.asides.append(f"not shown: {counted(chunk.offset, 'bytes')} before this")
        found.lines += lines
        self._offset = chunk.offset + len(chunk.data)
        if not chunk.data and self._life == 0:
            await self._succeed(client, found)
        return found

    async def _succeed(self, client: Client, found: NewLines) -> None:
        """Continue with the next incarnation once the last lines of this one were read."""
        newest = await client.read_logs(self.unit, incarnation=0, offset=0, limit=1)
        if newest.incarnation == self.incarnation:
            self._idle = False
        elif not self._idle:
            # Its last lines may have come between the two queries.
            self._idle = True
        else:
            found.lines += self._joined.end()
            found.asides.append(f"{self.unit}.{self.incarnation} ended; this is {self.unit}.{newest.incarnation}")
            self.incarnation, self._rotation, self._offset, self._idle = newest.incarnation, newest.rotation, 0, False
