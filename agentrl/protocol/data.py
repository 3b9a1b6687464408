"""What is asked of the data plane, and what is answered. The steward serves all of it.

Invariants: a row is a document of the store with its own names, less what is only for machines (tokens, manifests);
its times are UTC; a list goes on behind the last row that was seen, so pages neither repeat nor skip one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentrl.protocol.base import Args
from agentrl.protocol.rows import KnobValue


class ListRows(Args, frozen=True):
    """-> Page"""

    filter: str = ""
    """In the language of `agentrl.filters`."""
    sort: str = ""
    """Fields with commas, `-` before one for descending; empty: by id."""
    after: str = ""
    """The id of the last row that was seen."""
    limit: int = 100


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    rows: tuple[dict[str, Any], ...] = ()
    after: str = ""
    """Ask for what is behind it; empty at the end."""


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command did that a unit served."""

    lines: tuple[str, ...] = ()
    result: dict[str, KnobValue] = {}
