"""A file as its difference to another one of the same size, because weights change little from version to version.

A delta is a sequence of blocks, each its length in four bytes and the compressed difference (exclusive or) of a MiB of
both files; an unchanged block has the length 0.

Invariants:
- applying a delta gives exactly the original bytes, which the announced hash proves, or fails;
- a delta that is damaged, or too large when unpacked, gives no file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from agentrl.errors import AgentrlError
from agentrl.files.pieces import Content, ContentHash

BLOCK_BYTES = 1 << 20
SUFFIX = ".delta"
_LEVEL = 1
"""Most bytes are 0, so more effort gains little."""


class Delta(msgspec.Struct, frozen=True):
    """The difference by which a host that has another file can get this one."""

    base: Content
    """The file that the host must have."""
    name: str
    """The name of the file with the difference, which is beside the file itself."""
    content: Content


class DeltaError(AgentrlError):
    """The delta does not give the file that was announced."""


def write_delta(base: Path, file: Path, target: Path, *, most_bytes: int) -> Content | None:
    """Writes the difference of two files of the same size. Returns None, and leaves nothing, if it is larger than
    `most_bytes`, or if the sizes differ. Raises OSError."""
    if base.stat().st_size != file.stat().st_size:
        return None
    blocks: list[bytes] = []
    size = 0
    for former, now in _pairs(base, file):
        block = b"" if former == now else zlib.compress(_xor(former, now), _LEVEL)
        blocks += (len(block).to_bytes(4, "little"), block)
        size += 4 + len(block)
        if size > most_bytes:
            return None
    content_hash = ContentHash(size)
    with target.open("wb") as opened:
        for part in blocks:
            opened.write(part)
            content_hash.update(part)
    return content_hash.content()


def apply_delta(base: Path, delta: Path, target: Path, wanted: Content) -> None:
    """Writes the content of the file, which already exists with its size. Raises DeltaError if the result differs from
    the announced content, or OSError."""
    content_hash = ContentHash(wanted.bytes)
    with base.open("rb") as former, delta.open("rb") as changes, target.open("r+b") as out:
        while data := former.read(BLOCK_BYTES):
            now = _changed(data, changes)
            content_hash.update(now)
            out.write(now)
        if changes.read(1):
            raise DeltaError(f"{delta.name} has more blocks than its base.")
    if content_hash.content() != wanted:
        raise DeltaError(f"{delta.name} and its base do not give the file that was announced.")


def _changed(data: bytes, changes: BinaryIO) -> bytes:
    length = int.from_bytes(head := changes.read(4), "little")
    block = changes.read(length) if length <= 2 * BLOCK_BYTES else b""
    if len(head) != 4 or len(block) != length:
        raise DeltaError("The delta ends within a block.")
    if not length:
        return data
    unpack = zlib.decompressobj()
    try:
        # A block of a few bytes could unpack to any number of bytes.
        difference = unpack.decompress(block, len(data) + 1)
    except zlib.error as broken:
        raise DeltaError(f"The delta is damaged: {broken}.") from broken
    if len(difference) != len(data):
        raise DeltaError("The delta has a block of another size than its base.")
    return _xor(data, difference)


def _pairs(base: Path, file: Path) -> Iterator[tuple[bytes, bytes]]:
    with base.open("rb") as former, file.open("rb") as now:
        while data := now.read(BLOCK_BYTES):
            yield former.read(BLOCK_BYTES), data


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")
