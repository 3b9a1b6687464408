"""Token ids and log-probs as they are stored: one byte of format version, then little-endian numbers of four bytes.

Invariants: what was packed is unpacked unchanged (log-probs as float32); data of another format or of a broken length
is refused, never guessed. Empty bytes are an empty list: the field of a document that was never written.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from agentrl.errors import AgentrlError

FORMAT = 1

_BIG_ENDIAN = sys.byteorder == "big"
_ID_CODE = "I" if array("I").itemsize == 4 else "L"


class BinaryFormatError(AgentrlError):
    """Stored token data cannot be read."""


def pack_ids(ids: Iterable[int]) -> bytes:
    try:
        return _packed(array(_ID_CODE, ids))
    except OverflowError:
        raise BinaryFormatError("A token id does not fit into 32 bits without sign.") from None


def unpack_ids(data: bytes) -> list[int]:
    return [int(number) for number in _unpacked(array(_ID_CODE), data)]


def pack_floats(numbers: Iterable[float]) -> bytes:
    return _packed(array("f", numbers))


def unpack_floats(data: bytes) -> list[float]:
    return list(_unpacked(array("f"), data))


def _packed(numbers: array[int] | array[float]) -> bytes:
    if _BIG_ENDIAN:
        numbers.byteswap()
    return bytes((FORMAT,)) + numbers.tobytes()


def _unpacked(numbers: array[float], data: bytes) -> array[float]:
    if not data:
        return numbers
    if data[0] != FORMAT:
        raise BinaryFormatError(
            f"Token data has format {data[0]}, and this program reads format {FORMAT}.",
            hint="It was written by another version of agentrl.",
        )
    if len(data) % numbers.itemsize != 1:
        raise BinaryFormatError(f"Token data of {len(data)} bytes is cut off.")
    numbers.frombytes(data[1:])
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers
