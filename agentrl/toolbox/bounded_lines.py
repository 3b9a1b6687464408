"""Reads lines of any length in bounded memory.

Invariants:
- No line is in memory as a whole if it is longer than WHOLE_BYTES.
- A long JSON line keeps its structure and both ends of each long string, so it remains valid JSON.
- Reading yields to the event loop after each SLICE_S, however many lines there are.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from agentrl.toolservers.shortening import gap

WHOLE_BYTES = 1 << 20
"""A shorter line is left as it is."""
MOST_BYTES = 16 << 20
"""A line whose structure without long strings is longer is not read."""
KEPT_BYTES = 1 << 20
"""Bytes kept of each end of a long string in a long line."""
HEAD_BYTES = 4096
SLICE_S = 0.002
_PIECE_BYTES = 1 << 16
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WHOLE_CHARACTERS = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+', re.DOTALL)
_BACKSLASHES = re.compile(rb"\\+.?|\"", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TooLong:
    """The head of a line that is not read."""

    head: bytes
    length: int


Line = bytes | TooLong


class JsonShortener:
    """Copies JSON piece by piece; of each string longer than twice `kept` only both ends."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self.copied = bytearray()
        self._in_string = False
        self._escaped = False
        """The last piece ended with a backslash, which escapes the next byte."""
        self._clear_string()

    def feed(self, piece: bytes) -> None:
        at = 0
        while at < len(piece):
            if self._in_string:
                end = self._end_of_string(piece, at)
                self._keep(piece[at:end])
                if end < len(piece):
                    self._close_string()
                    end += 1
            else:
                end = piece.find(b'"', at) + 1 or len(piece)
                self._in_string = piece[end - 1] == ord('"')
                self.copied += piece[at:end]
            at = end

    def _end_of_string(self, piece: bytes, at: int) -> int:
        """The place of the closing quote, or the end of the piece."""
        if self._escaped:
            self._escaped = False
            at += 1
        match = _IN_STRING.match(piece, at)
        end = match.end() if match else at
        if end < len(piece) and piece[end] == ord("\\"):
            self._escaped = True
            return len(piece)
        return end

    def _clear_string(self) -> None:
        self._head, self._tail, self._length = bytearray(), bytearray(), 0

    def _keep(self, part: bytes) -> None:
        self._length += len(part)
        room = self._kept - len(self._head)
        self._head += part[:room]
        self._tail += part[room:]
        if len(self._tail) > 2 * self._kept:
            del self._tail[: -self._kept]

    def _close_string(self) -> None:
        if self._length == len(self._head) + len(self._tail):
            self.copied += self._head + self._tail
        else:
            head, tail = _whole_head(self._head), _whole_tail(self._tail[-self._kept :])
            left_out = gap(self._length - len(head) - len(tail)).replace("\n", "\\n")
            self.copied += head + left_out.encode() + tail
        self.copied += b'"'
        self._in_string = False
        self._clear_string()


def _whole_head(head: bytearray) -> bytes:
    """The beginning of a string, cut so that it does not end within an escape sequence or a character."""
    match = _WHOLE_CHARACTERS.match(head)
    whole = bytes(head[: match.end() if match else 0])
    for count in range(1, min(4, len(whole)) + 1):
        if whole[-count] & 0xC0 != 0x80:
            return whole[:-count] if whole[-count] >= 0xC0 else whole
    return whole


def _whole_tail(tail: bytearray) -> bytes:
    """The end of a string, cut so that it does not begin within an escape sequence or a character. A cut escape loses
    its backslash."""
    start = 0
    while start < len(tail) and tail[start] & 0xC0 == 0x80:
        start += 1
    if match := _BACKSLASHES.match(tail, start):
        start = match.end()
    return bytes(tail[start:])


class _Line:
    """The line that is being read."""

    def __init__(self, whole: int, most: int, *, shorten: bool) -> None:
        self._whole, self._most, self._shorten = whole, most, shorten
        self._start = bytearray()
        self._long: JsonShortener | None = None
        self.length = 0

    def add(self, piece: bytes) -> None:
        self.length += len(piece)
        if self.length <= self._whole:
            self._start += piece
        elif not self._shorten:
            self._start += piece[: max(0, HEAD_BYTES - len(self._start))]
        else:
            if self._long is None:
                self._long = JsonShortener()
                self._long.feed(bytes(self._start))
                del self._start[HEAD_BYTES:]
                self._start += piece[: HEAD_BYTES - len(self._start)]
            if len(self._long.copied) <= self._most:
                self._long.feed(piece)

    def taken(self) -> Line:
        if self.length <= self._whole:
            return bytes(self._start)
        if self._long is None or len(self._long.copied) > self._most:
            return TooLong(bytes(self._start[:HEAD_BYTES]), self.length)
        return bytes(self._long.copied)


async def lines(
    stream: asyncio.StreamReader, *, whole: int | None = None, most: int | None = None, shorten: bool = True
) -> AsyncIterator[Line]:
    """Lines that are not empty, without their newline. Without `shorten` a line longer than `whole` is TooLong."""
    whole, most = WHOLE_BYTES if whole is None else whole, MOST_BYTES if most is None else most
    line = _Line(whole, most, shorten=shorten)
    began = time.monotonic()
    while piece := await stream.read(_PIECE_BYTES):
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            if line.length or end - start > whole:
                line.add(piece[start:end])
                yield line.taken()
                line = _Line(whole, most, shorten=shorten)
            elif end > start:
                yield piece[start:end]
            start = end + 1
            if time.monotonic() - began > SLICE_S:
                await asyncio.sleep(0)
                began = time.monotonic()
        line.add(piece[start:])
        await asyncio.sleep(0)
        began = time.monotonic()
    if line.length:
        yield line.taken()
