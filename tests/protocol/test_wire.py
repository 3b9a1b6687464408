"""Bytes from outside are decoded, or refused with a ProtocolError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ProtocolError
from agentrl.protocol import feed, messages, rows, wire
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from tests.protocol.samples import MESSAGES, ROWS, filled

DECODERS: list[Callable[[bytes], Any]] = [
    wire.decode_to_coordinator,
    wire.decode_from_coordinator,
    wire.decode_feed,
    wire.decode_row,
    lambda frame: wire.decode_as(rows.OperationRow, frame),
]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
tags = st.sampled_from([str(kind.__struct_config__.tag) for kind in [*MESSAGES.values(), *ROWS.values()]])
names = st.sampled_from(
    sorted({field.name for kind in [*MESSAGES.values(), *ROWS.values()] for field in msgspec.structs.fields(kind)})
)


def _only_protocol_errors(frame: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(ProtocolError):
            decode(frame)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_a_protocol_error(frame: bytes) -> None:
    _only_protocol_errors(frame)


@settings(max_examples=150, deadline=None)
@given(tag=tags, fields=st.dictionaries(names, values, max_size=6))
def test_wrong_fields_are_a_protocol_error(tag: str, fields: dict[str, Any]) -> None:
    _only_protocol_errors(msgspec.msgpack.encode({"type": tag, **fields}))


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(sorted({**MESSAGES, **ROWS})),
    at=st.integers(0, 10_000),
    flip=st.integers(1, 255),
    cut=st.integers(0, 3),
)
def test_damaged_message_is_a_protocol_error(name: str, at: int, flip: int, cut: int) -> None:
    frame = bytearray(wire.encode(filled({**MESSAGES, **ROWS}[name])))
    frame[at % len(frame)] ^= flip
    _only_protocol_errors(bytes(frame[: len(frame) - cut]))


@pytest.mark.parametrize("deep", [b"\x91" * 100_000, b"\x81\xa1a" * 100_000], ids=["lists", "maps"])
def test_deep_nesting_is_a_protocol_error(deep: bytes) -> None:
    _only_protocol_errors(deep)
    _only_protocol_errors(b"\x82\xa4type\xa7request\xa4args" + deep)


def test_oversized_message_is_refused_unread() -> None:
    with pytest.raises(ProtocolError, match="4 MiB"):
        wire.decode_feed(bytes(MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_field_of_a_newer_version_is_ignored(name: str) -> None:
    plain = msgspec.msgpack.decode(wire.encode(filled(MESSAGES[name])))
    newer = msgspec.msgpack.encode({**plain, "a_field_of_tomorrow": [1, {"deep": None}]})
    assert wire.encode(wire.decode_as(MESSAGES[name], newer)) == wire.encode(filled(MESSAGES[name]))


@pytest.mark.parametrize("decode", DECODERS[:4])
@pytest.mark.parametrize("body", [{"type": "of_tomorrow"}, {}, {"type": 5}, [], None])
def test_unknown_tag_is_refused(decode: Callable[[bytes], Any], body: object) -> None:
    with pytest.raises(ProtocolError):
        decode(msgspec.msgpack.encode(body))


def test_message_in_the_wrong_direction_is_refused() -> None:
    """The coordinator refuses messages that only the coordinator may send."""
    with pytest.raises(ProtocolError):
        wire.decode_to_coordinator(wire.encode(filled(messages.Welcome)))
    with pytest.raises(ProtocolError):
        wire.decode_from_coordinator(wire.encode(filled(messages.Beat)))


def test_every_message_has_one_direction_or_is_on_the_feed() -> None:
    homes = [set(union.__args__) for union in (messages.ToCoordinator, messages.FromCoordinator, feed.Feed)]
    for kind in MESSAGES.values():
        assert sum(kind in home for home in homes) == 1, kind


def test_tags_are_distinct_in_each_direction() -> None:
    for union in (messages.ToCoordinator, messages.FromCoordinator, feed.Feed, rows.AnyRow):
        found = [kind.__struct_config__.tag for kind in union.__args__]
        assert len(found) == len(set(found))
