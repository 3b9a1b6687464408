"""Encodes messages to bytes and decodes them.

Invariant: bytes from outside are decoded as one of a closed union of types; anything else raises ProtocolError with one
sentence, and no other exception.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.msgpack import Decoder

from agentrl.errors import ProtocolError
from agentrl.protocol import feed, messages, rows

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_to_coordinator: Decoder[messages.ToCoordinator] = Decoder(messages.ToCoordinator)
_from_coordinator: Decoder[messages.FromCoordinator] = Decoder(messages.FromCoordinator)
_feed: Decoder[feed.Feed] = Decoder(feed.Feed)
_row: Decoder[rows.AnyRow] = Decoder(rows.AnyRow)
_decoders: dict[Any, Decoder[Any]] = {}

encode = _encoder.encode


def raw(value: Any) -> msgspec.Raw:
    """An encoded value, to be part of another message."""
    return msgspec.Raw(_encoder.encode(value))


def decode_to_coordinator(frame: bytes | memoryview) -> messages.ToCoordinator:
    """A message that arrived at the coordinator."""
    return _decode(_to_coordinator, frame)


def decode_from_coordinator(frame: bytes | memoryview) -> messages.FromCoordinator:
    """A message that arrived at a unit, host agent or client."""
    return _decode(_from_coordinator, frame)


def decode_feed(frame: bytes | memoryview) -> feed.Feed:
    """A message of the feed or the metrics socket."""
    return _decode(_feed, frame)


def decode_row(body: msgspec.Raw | bytes) -> rows.AnyRow:
    """The value of a FeedRow or SnapshotRow."""
    return _decode(_row, body)


def decode_as(kind: type[T], body: msgspec.Raw | bytes) -> T:
    """A body whose type is known from the context, such as the result of a reply or the arguments of a command."""
    decoder: Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        # Making a decoder costs more than decoding a small message. There are only as many as types in the code.
        decoder = _decoders[kind] = Decoder(kind)
    return _decode(decoder, body)


def _decode(decoder: Decoder[T], frame: msgspec.Raw | bytes | memoryview) -> T:
    if len(memoryview(frame)) > messages.MAX_MESSAGE_BYTES:
        raise ProtocolError(f"A message is larger than {messages.MAX_MESSAGE_BYTES >> 20} MiB.")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as broken:
        raise ProtocolError(f"A message is not valid: {broken}.") from broken
