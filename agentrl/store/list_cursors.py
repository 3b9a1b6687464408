"""The cursor of a list as text: the sort values of the last row that was shown.

Invariants: a cursor means the same place even if its row changes or is removed; a text that is not a cursor, or is for
a list of another kind or order, is refused with a sentence.
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
    """Writes a cursor as one word for a shell, as short as its values allow."""
    place = msgspec.msgpack.encode([_list(kind, keys), *map(_plain, values_of(keys, row))])
    return _BEGINS + base64.urlsafe_b64encode(place).decode().rstrip("=")


def is_place(text: object) -> bool:
    """Whether a text is a cursor; False for the id of a row."""
    return isinstance(text, str) and text.startswith(_BEGINS)


def read(text: str, kind: str, keys: Sequence[SortKey]) -> list[Any]:
    """The values after which the list continues. Raises UsageError."""
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
    """A text that identifies the list and its order."""
    return zlib.crc32(f"{kind} by {_order(keys)}".encode())


def _plain(value: Any) -> Any:
    """A value in plain types: times are stored in UTC, and the server returns large integers as a type of its own."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _order(keys: Sequence[SortKey]) -> str:
    return ",".join(map(str, keys))
