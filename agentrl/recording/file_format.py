"""PURE: the bytes of a recording.

A file is `MAGIC` and then blocks, each with its kind, its time and the length of its body. A frame is a minute: a block
`FRAME`, whose body is the epoch of the coordinator, and then blocks `ROWS` up to the next frame. The bodies of a
frame's `ROWS` are one compressed stream that is flushed at the end of each body; the first of them is a snapshot.
A block `MARK` names the row by which something began that one may want to jump to.

Invariants: a frame is read without any other; whatever was flushed is readable, wherever the file was cut off; what
cannot be read is refused with a sentence, never guessed.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from agentrl.errors import ProtocolError

MAGIC = b"agentrl recording 1\n"
_HEAD = struct.Struct(">BdI")
HEAD_BYTES = _HEAD.size
MOST_BODY_BYTES = 64 * 1024 * 1024
"""No block is larger: a length that says so was never written."""
_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
LATEST = 2.0e11
"""Later than any clock tells, and still a date everywhere: what is said to be of then is damage."""


class Kind(enum.IntEnum):
    FRAME = 1
    ROWS = 2
    MARK = 3


class Head(NamedTuple):
    kind: Kind
    at: float
    length: int


class Change(msgspec.Struct, array_like=True, frozen=True):
    """A row as it was from then on; nil means that it was gone."""

    at: float
    key: str
    value: msgspec.Raw = msgspec.Raw(b"\xc0")

    @property
    def gone(self) -> bool:
        return bytes(self.value) == b"\xc0"


_change = msgspec.msgpack.Decoder(Change)


def block(kind: Kind, at: float, body: bytes) -> bytes:
    return _HEAD.pack(kind, at, len(body)) + body


def head(data: bytes) -> Head | None:
    """The head of a block; None if there is no whole one. ProtocolError if these bytes are none."""
    if len(data) < HEAD_BYTES:
        return None
    kind, at, length = _HEAD.unpack_from(data)
    if kind not in Kind._value2member_map_ or length > MOST_BODY_BYTES or not 0 <= at <= LATEST:
        raise ProtocolError("The recording is damaged: a block begins with bytes that are no head.")
    return Head(Kind(kind), at, length)


class Packer:
    """One frame's stream of rows, as it is written."""

    def __init__(self) -> None:
        self._compress = zlib.compressobj(6)

    def pack(self, changes: Iterable[Change]) -> bytes:
        """The body of one block."""
        parts = []
        for change in changes:
            body = _encoder.encode(change)
            parts.append(self._compress.compress(_LENGTH.pack(len(body)) + body))
        parts.append(self._compress.flush(zlib.Z_SYNC_FLUSH))
        return b"".join(parts)


class Unpacker:
    """The same stream, as it is read: bodies in their order."""

    def __init__(self) -> None:
        self._decompress = zlib.decompressobj()

    def unpack(self, body: bytes) -> Iterator[Change]:
        try:
            data = self._decompress.decompress(body)
            at = 0
            while at < len(data):
                (length,) = _LENGTH.unpack_from(data, at)
                at += _LENGTH.size
                change = _change.decode(data[at : at + length])
                if not 0 <= change.at <= LATEST:
                    raise ProtocolError("The recording is damaged: a row is of no time.")
                yield change
                at += length
        except (zlib.error, struct.error, msgspec.MsgspecError) as error:
            raise ProtocolError(f"The recording is damaged: {error}.") from error
