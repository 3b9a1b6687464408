"""How a file is cut into pieces, and the hashes by which the pieces are checked one by one.

Invariants:
- The size of a piece follows from the size of the file, so that a list of hashes never has more than MOST_PIECES.
- A list of another length than the size of the file demands is never used.
"""

from __future__ import annotations

import hashlib
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


def content_of(file: Path) -> Content:
    """Of a file as it is now; it is read once. Raises OSError."""
    whole, pieces = hashlib.blake2b(), []
    with file.open("rb") as opened:
        size = file.stat().st_size
        for number in range(piece_count(size)):
            piece, left = hashlib.blake2b(digest_size=16), piece_range(size, number)[1]
            while left and (data := opened.read(min(left, _READ_BYTES))):
                whole.update(data)
                piece.update(data)
                left -= len(data)
            pieces.append(piece.hexdigest())
    return Content(size, whole.hexdigest(), tuple(pieces))


def _is_hash(text: str, digits: int) -> bool:
    return len(text) == digits and not text.strip("0123456789abcdef")
