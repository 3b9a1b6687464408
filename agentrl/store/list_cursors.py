"""A place in a list, as text to go on from: the values of the last row that was seen, in the order of the list.

Invariants: a place means the same rows whatever becomes of its row meanwhile, also where that is removed; what was not
written here, or for a list of another kind or order, is refused with a sentence.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from agentrl.errors import UsageError
from agentrl.filters.sorting import SortKey, values_of

_BEGINS = "behind:"
_FIRST_PAGE = "Begin at the first page."


def written(kind: str, keys: Sequence[SortKey], row: Mapping[str, Any]) -> str:
    """What a shell takes as one word, as short as the values let it be."""
    place = msgspec.msgpack.encode([_list(kind, keys), *map(_plain, values_of(keys, row))])
    return _BEGINS + base64.urlsafe_b64encode(place).decode().rstrip("=")


def is_place(text: object) -> bool:
    """False for the id of a row."""
    return isinstance(text, str) and text.startswith(_BEGINS)


def read(text: str, kind: str, keys: Sequence[SortKey]) -> list[Any]:
    """The values behind which to go on. Raises UsageError."""
    coded = text.removeprefix(_BEGINS)
    try:
        place = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
        of, *values = msgspec.msgpack.decode(place, type=list[Any])
    except (ValueError, RecursionError):
        raise UsageError("That is no place in a list, or not all of one.", hint=_FIRST_PAGE) from None
    if of != _list(kind, keys) or len(values) != len(keys):
        raise UsageError(
            f"That place is one in another list or order, not in that of {kind} by {_order(keys)}.", hint=_FIRST_PAGE
        )
    if not all(value is None or isinstance(value, str | int | float | datetime) for value in values):
        raise UsageError("That is no place in a list.", hint=_FIRST_PAGE)
    return values


def _list(kind: str, keys: Sequence[SortKey]) -> int:
    """Tells lists and orders apart."""
    return zlib.crc32(f"{kind} by {_order(keys)}".encode())


def _plain(value: Any) -> Any:
    """Times are stored in UTC; a large number comes back from the server as its own kind of whole number."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _order(keys: Sequence[SortKey]) -> str:
    return ",".join(map(str, keys))
