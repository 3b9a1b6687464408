"""How a file is cut into pieces, and the hashes by which the pieces are checked one by one.

Each byte is hashed once, with its piece; the name of the content is the hash of these hashes. So several threads can
hash the pieces of one file, and a reader that checks each piece has checked the file.

Invariants:
- The size of a piece follows from the size of the file, so that a list of hashes never has more than MOST_PIECES.
- A list of hashes whose length does not fit the size of the file is never used.
- `read_checked` passes on no byte whose piece it has not checked.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

SMALLEST_BYTES = 4 << 20
"""So large that the cost of a request is small compared with its piece."""
MOST_PIECES = 1024
MOST_THREADS = 8
Take = Callable[[int, memoryview], None]
"""Called with an offset in the file and the bytes from there on, which are valid only during the call."""


class Content(msgspec.Struct, frozen=True):
    """The size and the hashes of a file's content."""

    bytes: int
    blake2b: str
    """The hash of the hashes of its pieces; the name of the content."""
    pieces: tuple[str, ...] = ()
    """The hash of each piece."""

    def problem(self) -> str:
        """Why no host can be asked for it; empty if one can."""
        if self.bytes < 0 or not _is_hash(self.blake2b, 128):
            return "its size or its hash is malformed"
        wanted = piece_count(self.bytes)
        if len(self.pieces) != wanted:
            return f"its list has {len(self.pieces)} of {wanted} pieces"
        return "" if all(_is_hash(piece, 32) for piece in self.pieces) else "its list of pieces has a malformed hash"


def piece_bytes(size: int) -> int:
    """The size of every piece except the last one."""
    wanted = SMALLEST_BYTES
    while wanted * MOST_PIECES < size:
        wanted *= 2
    return wanted


def piece_count(size: int) -> int:
    return -(-size // piece_bytes(size))


def piece_range(size: int, number: int) -> tuple[int, int]:
    """The offset and the length of the piece."""
    each = piece_bytes(size)
    return number * each, min(each, size - number * each)


class PieceHash:
    """The hash of one piece, whose bytes come in order."""

    def __init__(self) -> None:
        self._found = hashlib.blake2b(digest_size=16)

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._found.update(data)

    def text(self) -> str:
        return self._found.hexdigest()


def piece_hash(data: bytes | memoryview) -> str:
    found = PieceHash()
    found.update(data)
    return found.text()


def content_of_pieces(size: int, hashes: Iterable[str]) -> Content:
    pieces = tuple(hashes)
    return Content(size, hashlib.blake2b("".join(pieces).encode()).hexdigest(), pieces)


class ContentHash:
    """Computes the content of a file of known size while its bytes are written in order, so that the file need not be
    read again."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._piece = PieceHash()
        self._left = piece_range(size, 0)[1] if size else 0
        """Bytes until the end of the piece."""
        self._pieces: list[str] = []

    def update(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            part, rest = rest[: self._left], rest[self._left :]
            self._piece.update(part)
            self._left -= len(part)
            if self._left == 0:
                self._end_piece()

    def content(self) -> Content:
        """The content of all bytes. Call it after exactly the announced number of bytes."""
        return content_of_pieces(self._size, self._pieces)

    def _end_piece(self) -> None:
        self._pieces.append(self._piece.text())
        self._piece = PieceHash()
        number = len(self._pieces)
        # Surplus bytes go into a piece that never ends.
        self._left = piece_range(self._size, number)[1] if number < piece_count(self._size) else self._size + 1


def content_of(file: Path) -> Content:
    """The content of a file as it is now; reads it once. Raises OSError."""
    size = file.stat().st_size
    hashes = [""] * piece_count(size)

    def keep(number: int, data: memoryview) -> bool:
        hashes[number] = piece_hash(data)
        return True

    _read_pieces(file, size, keep)
    return content_of_pieces(size, hashes)


def is_content(file: Path, content: Content) -> bool:
    """Whether the file has this content. Raises OSError."""
    return file.stat().st_size == content.bytes and read_checked(file, content)


def read_checked(file: Path, content: Content, take: Take = lambda at, data: None, *, until: int | None = None) -> bool:
    """Whether a file of the right size has this content. `take` is called with each correct piece, once, in any order
    and from several threads at a time. `until`: pieces after this offset are not read. Raises OSError."""
    if content.bytes and not content.pieces:
        return _read_without_pieces(file, content, take)
    each = piece_bytes(content.bytes)

    def check(number: int, data: memoryview) -> bool:
        if piece_hash(data) != content.pieces[number]:
            return False
        take(number * each, data)
        return True

    if len(content.pieces) != piece_count(content.bytes):
        return False
    return _read_pieces(file, content.bytes, check, None if until is None else -(-until // each))


def read_start(file: Path, content: Content, length: int) -> bytes:
    """The first bytes of a file, checked by their hash. Raises ValueError if they are not the expected ones, or
    OSError."""
    size, found = file.stat().st_size, bytearray(length)

    def keep(at: int, data: memoryview) -> None:
        found[at : at + len(data)] = data[: max(0, length - at)]

    if size != content.bytes or not read_checked(file, content, keep, until=length):
        raise ValueError("it has another content than was written")
    return bytes(found)


def threads() -> int:
    """The number of threads for work on the pieces of a file."""
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


def _read_pieces(file: Path, size: int, act: Callable[[int, memoryview], bool], first: int | None = None) -> bool:
    """Reads all pieces, or the first ones, until `act` returns False for one of them. Raises OSError, even if the file
    only became shorter."""
    numbers, stopped = itertools.count(), False
    count = piece_count(size) if first is None else min(first, piece_count(size))

    def work(descriptor: int) -> None:
        nonlocal stopped
        # One buffer for all pieces of the thread, so that its bytes are hashed and used while they are in the
        # processor's cache.
        buffer = memoryview(bytearray(min(size, piece_bytes(size))))
        while not stopped and (number := next(numbers)) < count:
            at, length = piece_range(size, number)
            _read_into(descriptor, buffer[:length], at, file)
            if not act(number, buffer[:length]):
                stopped = True

    workers = min(threads(), count)
    with file.open("rb", buffering=0) as opened:
        if workers < 2:
            work(opened.fileno())
            return not stopped
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="pieces") as pool:
            for _ in pool.map(work, [opened.fileno()] * workers):
                pass
    return not stopped


def _read_into(descriptor: int, target: memoryview, at: int, file: Path) -> None:
    while target:
        count = os.preadv(descriptor, [target], at)
        if not count:
            raise OSError(0, "it became shorter while it was read", str(file))
        target, at = target[count:], at + count


def _read_without_pieces(file: Path, content: Content, take: Take) -> bool:
    """Checks a content that an earlier version of agentrl described by one hash of all bytes."""
    data = file.read_bytes()
    if hashlib.blake2b(data).hexdigest() != content.blake2b:
        return False
    take(0, memoryview(data))
    return True


def _is_hash(text: str, digits: int) -> bool:
    return len(text) == digits and not text.strip("0123456789abcdef")
