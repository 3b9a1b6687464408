"""Token ids and log-probs as they are stored: one byte of format version, then little-endian numbers of four bytes.

Invariants:
- unpacking gives back what was packed (log-probs as float32);
- data of another format or with an invalid length is refused, never guessed;
- empty bytes are an empty list: a field of a document that was never written.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import TypeVar

from agentrl.errors import AgentrlError

N = TypeVar("N", int, float)
FORMAT = 1
NUMBER_BYTES = 4

_BIG_ENDIAN = sys.byteorder == "big"
_ID_CODE = "I" if array("I").itemsize == NUMBER_BYTES else "L"


class BinaryFormatError(AgentrlError):
    """Stored token data cannot be read."""


def pack_ids(ids: Iterable[int]) -> bytes:
    try:
        return _packed(array(_ID_CODE, ids))
    except OverflowError:
        raise BinaryFormatError("A token id does not fit into 32 bits without sign.") from None


def unpack_ids(data: bytes) -> list[int]:
    numbers: array[int] = array(_ID_CODE)
    return _unpacked(numbers, data).tolist()


def pack_floats(numbers: Iterable[float]) -> bytes:
    return _packed(array("f", numbers))


def unpack_floats(data: bytes) -> list[float]:
    numbers: array[float] = array("f")
    return _unpacked(numbers, data).tolist()


def length(data: bytes) -> int:
    """How many numbers these are."""
    return len(payload(data)) // NUMBER_BYTES


def payload(data: bytes) -> bytes:
    """The bytes of the numbers without the format byte, still little-endian. Raises BinaryFormatError."""
    if not data:
        return b""
    if data[0] != FORMAT:
        raise BinaryFormatError(
            f"Token data has format {data[0]}, and this program reads format {FORMAT}.",
            hint="Another version of agentrl wrote it.",
        )
    if len(data) % NUMBER_BYTES != 1:
        raise BinaryFormatError(f"Token data of {len(data)} bytes is cut off.")
    return data[1:]


def _packed(numbers: array[int] | array[float]) -> bytes:
    if _BIG_ENDIAN:
        numbers.byteswap()
    return bytes((FORMAT,)) + numbers.tobytes()


def _unpacked(numbers: array[N], data: bytes) -> array[N]:
    numbers.frombytes(payload(data))
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers
