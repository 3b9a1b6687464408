"""Stored token data is read back unchanged, or refused."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tokens.binary_format import BinaryFormatError, pack_floats, pack_ids, unpack_floats, unpack_ids


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_come_back(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == ids
    assert len(pack_ids(ids)) == 1 + 4 * len(ids)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_log_probs_come_back_as_float32(numbers: list[float]) -> None:
    assert unpack_floats(pack_floats(numbers)) == numbers


def test_the_format_is_fixed() -> None:
    assert pack_ids([1, 258]) == b"\x01\x01\x00\x00\x00\x02\x01\x00\x00"
    assert pack_floats([-0.5]) == b"\x01" + struct.pack("<f", -0.5)
    assert math.isnan(unpack_floats(pack_floats([math.nan]))[0])


def test_a_field_that_was_never_written_is_an_empty_list() -> None:
    assert unpack_ids(b"") == []
    assert unpack_floats(b"") == []


def test_unknown_formats_and_broken_lengths_are_refused() -> None:
    with pytest.raises(BinaryFormatError, match="format 2"):
        unpack_ids(b"\x02\x00\x00\x00\x00")
    with pytest.raises(BinaryFormatError, match="cut off"):
        unpack_floats(b"\x01\x00\x00")
    for wrong in (-1, 2**32):
        with pytest.raises(BinaryFormatError, match="32 bits"):
            pack_ids([wrong])
