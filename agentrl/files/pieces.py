"""How a file is cut into pieces, and the hashes by which the pieces are checked one by one.

Invariants:
- The size of a piece follows from the size of the file, so that a list of hashes never has more than MOST_PIECES.
- A list of another length than the size of the file demands is never used.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

SMALLEST_BYTES = 4 << 20
"""Large enough that a request costs little beside its piece."""
MOST_PIECES = 1024
_READ_BYTES = 1 << 20


class Content(msgspec.Struct, frozen=True):
    """What a file must contain."""

    bytes: int
    blake2b: str
    """Of the whole file; the name of the content."""
    pieces: tuple[str, ...] = ()
    """The hash of each piece."""

    def problem(self) -> str:
        """Empty, or why no host can be asked for it."""
        if self.bytes < 0 or not _is_hash(self.blake2b, 128):
            return "its size or its hash is no size or hash"
        wanted = piece_count(self.bytes)
        if len(self.pieces) != wanted:
            return f"its list has {len(self.pieces)} of {wanted} pieces"
        return "" if all(_is_hash(one, 32) for one in self.pieces) else "its list of pieces has what is no hash"


def piece_bytes(size: int) -> int:
    """Of every piece but the last one."""
    wanted = SMALLEST_BYTES
    while wanted * MOST_PIECES < size:
        wanted *= 2
    return wanted


def piece_count(size: int) -> int:
    return -(-size // piece_bytes(size))


def piece_range(size: int, number: int) -> tuple[int, int]:
    """Where the piece begins, and its length."""
    each = piece_bytes(size)
    return number * each, min(each, size - number * each)


def piece_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class ContentHash:
    """The content of a file of known size whose bytes come in order, so that a writer need not read it again."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._whole = hashlib.blake2b()
        self._piece = hashlib.blake2b(digest_size=16)
        self._left = piece_range(size, 0)[1] if size else 0
        """Bytes until the end of the piece."""
        self._pieces: list[str] = []

    def update(self, data: bytes | memoryview) -> None:
        self._whole.update(data)
        rest = memoryview(data)
        while rest:
            part, rest = rest[: self._left], rest[self._left :]
            self._piece.update(part)
            self._left -= len(part)
            if self._left == 0:
                self._end_piece()

    def content(self) -> Content:
        """Of all bytes, which are as many as were announced."""
        return Content(self._size, self._whole.hexdigest(), tuple(self._pieces))

    def _end_piece(self) -> None:
        self._pieces.append(self._piece.hexdigest())
        self._piece = hashlib.blake2b(digest_size=16)
        number = len(self._pieces)
        # More bytes than announced stay in a piece that never ends.
        self._left = piece_range(self._size, number)[1] if number < piece_count(self._size) else self._size + 1


def content_of(file: Path) -> Content:
    """Of a file as it is now; it is read once. Raises OSError."""
    with file.open("rb") as opened:
        found = ContentHash(os.fstat(opened.fileno()).st_size)
        while data := opened.read(_READ_BYTES):
            found.update(data)
    return found.content()


def _is_hash(text: str, digits: int) -> bool:
    return len(text) == digits and not text.strip("0123456789abcdef")
