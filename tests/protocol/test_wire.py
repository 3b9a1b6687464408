"""Bytes from outside are decoded, or refused with a ProtocolError."""

from __future__ import annotations

import contextlib
import math
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


def _with_number(value: Any, number: float) -> Any:
    """The same plain value with one of its floats replaced; None if it has none."""
    match value:
        case float():
            return number
        case dict():
            places: Any = value.items()
        case list():
            places = enumerate(value)
        case _:
            return None
    for key, part in places:
        if (changed := _with_number(part, number)) is not None:
            value[key] = changed
            return value
    return None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", sorted({**MESSAGES, **ROWS}.keys() - {"UnitMetrics"}))
def test_number_that_is_not_finite_is_a_protocol_error(name: str, number: float) -> None:
    kind = {**MESSAGES, **ROWS}[name]
    plain = _with_number(msgspec.msgpack.decode(wire.encode(filled(kind))), number)
    if plain is None:
        return
    with pytest.raises(ProtocolError, match="not valid"):
        wire.decode_as(kind, msgspec.msgpack.encode(plain))


def test_refused_number_is_named() -> None:
    trouble = messages.CoordinatorTrouble(1, "ended", "another one was started", age_s=math.nan)
    with pytest.raises(ProtocolError, match="the number at age_s is not finite"):
        wire.decode_to_coordinator(wire.encode(trouble))
    report = messages.UnitReport(waits=(messages.Wait("judge-0"), messages.Wait("batch", at_most_s=math.inf)))
    with pytest.raises(ProtocolError, match=r"waits\.1\.at_most_s"):
        wire.decode_to_coordinator(wire.encode(report))


def test_metric_without_a_value_and_text_that_looks_like_nan_are_accepted() -> None:
    for message in (
        messages.UnitMetrics({"loss": math.nan}),
        messages.Answer("1", body=msgspec.Raw(msgspec.msgpack.encode(b"\xcb\x7f\xf8"))),
        messages.UnitReport(at_most_s=1.7e308),
    ):
        decoded = wire.decode_to_coordinator(wire.encode(message))
        assert wire.encode(decoded) == wire.encode(message)


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
