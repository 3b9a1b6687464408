"""The format of recording files. Pure.

A file is `MAGIC` and then blocks. A block has a kind, a time, the length of its body, and the body:

- `FRAME` begins a frame of one minute. Its body is the epoch of the coordinator.
- `ROWS` are changed rows. The bodies of all `ROWS` of a frame are one compressed stream, flushed at the end of each
  body. The first `ROWS` of a frame are a snapshot of all rows.
- `MARK` names a row by which something began (an incident, an alert, an operation).

Invariants: a frame can be read without any other frame; whatever was flushed is readable, wherever the file was cut
off; damaged data raises ProtocolError and is never guessed.
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
MAX_BODY_BYTES = 64 * 1024 * 1024
"""A longer length is damage."""
MAX_TIME = 2.0e11
"""A later time is damage. Every earlier one is a valid date."""
_LENGTH = struct.Struct(">I")
_NIL = b"\xc0"
_encoder = msgspec.msgpack.Encoder()


class Kind(enum.IntEnum):
    FRAME = 1
    ROWS = 2
    MARK = 3


class Head(NamedTuple):
    kind: Kind
    at: float
    length: int


class Change(msgspec.Struct, array_like=True, frozen=True):
    """The value of a row from a time on; nil if the row was removed."""

    at: float
    key: str
    value: msgspec.Raw = msgspec.Raw(_NIL)

    @property
    def gone(self) -> bool:
        return bytes(self.value) == _NIL


_decoder = msgspec.msgpack.Decoder(Change)


def encode_block(kind: Kind, at: float, body: bytes) -> bytes:
    return _HEAD.pack(kind, at, len(body)) + body


def read_head(data: bytes) -> Head | None:
    """The head of a block; None if it is incomplete. Raises ProtocolError if it is damaged."""
    if len(data) < HEAD_BYTES:
        return None
    kind, at, length = _HEAD.unpack_from(data)
    if kind not in Kind._value2member_map_ or length > MAX_BODY_BYTES or not 0 <= at <= MAX_TIME:
        raise ProtocolError("The recording is damaged: the head of a block is not valid.")
    return Head(Kind(kind), at, length)


class Packer:
    """Compresses the rows of one frame."""

    def __init__(self) -> None:
        self._compress = zlib.compressobj(6)

    def pack(self, changes: Iterable[Change]) -> bytes:
        """The body of one `ROWS` block."""
        bodies = map(_encoder.encode, changes)
        data = b"".join(_LENGTH.pack(len(body)) + body for body in bodies)
        return self._compress.compress(data) + self._compress.flush(zlib.Z_SYNC_FLUSH)


class Unpacker:
    """Decompresses the rows of one frame, body by body."""

    def __init__(self) -> None:
        self._decompress = zlib.decompressobj()

    def unpack(self, body: bytes) -> Iterator[Change]:
        try:
            data = self._decompress.decompress(body)
            at = 0
            while at < len(data):
                (length,) = _LENGTH.unpack_from(data, at)
                at += _LENGTH.size
                change = _decoder.decode(data[at : at + length])
                if not 0 <= change.at <= MAX_TIME:
                    raise ProtocolError("The recording is damaged: the time of a row is not valid.")
                yield change
                at += length
        except (zlib.error, struct.error, msgspec.MsgspecError) as error:
            raise ProtocolError(f"The recording is damaged: {error}.") from error
