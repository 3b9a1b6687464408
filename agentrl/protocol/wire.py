"""Encodes messages to bytes and decodes them.

Invariants:
- Bytes from outside are decoded as one of a closed union of types; anything else raises ProtocolError with one
  sentence, and no other exception.
- Every decoded number is finite, because NaN and infinity break comparisons, timers and the journal. There are two
  exceptions: values in UnitMetrics (the unit has no value now) and results of queries (MongoDB may contain them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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

_MAY_BE_NOT_FINITE = re.compile(rb"[\xca\xcb][\x7f\xff][\x80-\xff]")
"""The first bytes of NaN and infinity. Text and finite numbers may contain them too, so a match is only a hint."""

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


def decode_as(kind: type[T], body: msgspec.Raw | bytes, *, finite: bool = True) -> T:
    """A body whose type is known from the context, such as the result of a reply or the arguments of a command."""
    decoder: Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        # Making a decoder costs more than decoding a small message. There are only as many as types in the code.
        decoder = _decoders[kind] = Decoder(kind)
    return _decode(decoder, body, finite=finite)


def _decode(decoder: Decoder[T], frame: msgspec.Raw | bytes | memoryview, *, finite: bool = True) -> T:
    # A view of bytes would cost a heartbeat as much as its decoding.
    if (len(frame) if type(frame) is bytes else len(memoryview(frame))) > messages.MAX_MESSAGE_BYTES:
        raise ProtocolError(f"A message is larger than {messages.MAX_MESSAGE_BYTES >> 20} MiB.")
    try:
        decoded = decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as broken:
        raise ProtocolError(f"A message is not valid: {broken}.") from broken
    if finite and _MAY_BE_NOT_FINITE.search(frame) and (place := _not_finite(decoded)) is not None:
        raise ProtocolError(f"A message is not valid: the number at {place or 'its start'} is not finite.")
    return decoded


def _not_finite(value: Any) -> str | None:
    """The place of a number that is not finite; None if there is none. Bodies that are not decoded yet (`Raw`) are
    checked when they are decoded.
    """
    parts: Mapping[Any, Any]
    match value:
        case float():
            return None if math.isfinite(value) else ""
        case messages.UnitMetrics():
            return None
        case msgspec.Struct():
            parts = msgspec.structs.asdict(value)
        case dict():
            parts = value
        case list() | tuple():
            parts = dict(enumerate(value))
        case _:
            return None
    for name, part in parts.items():
        if (place := _not_finite(part)) is not None:
            return f"{name}.{place}" if place else str(name)
    return None
