"""The death of a process at each of its writes to the store, one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from agentrl.store.database import Database, StoreUnavailableError

T = TypeVar("T")
WRITES = ("update_one", "update_many", "insert_missing")
MOST_WRITES = 40


async def repeated_after_deaths(
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[], Awaitable[T]],
    *,
    after_death: Callable[[], Awaitable[None]] | None = None,
) -> tuple[T, int]:
    """Repeat an act that dies before its first write, then before its second, until it succeeds. Returns its result and
    the number of deaths. `after_death` is the work of others before each repetition."""
    for writes in range(MOST_WRITES):
        try:
            with monkeypatch.context() as patched:
                _die_after(patched, writes)
                return await act(), writes
        except StoreUnavailableError:
            if after_death is not None:
                await after_death()
    raise AssertionError(f"it makes more than {MOST_WRITES} writes")


def _die_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Let the store accept this many more writes; the next one raises an error."""
    left = writes
    originals = {name: getattr(Database, name) for name in WRITES}

    def mortal(name: str) -> Any:
        async def write(self: Database, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if not left:
                raise StoreUnavailableError("killed")
            left -= 1
            return await originals[name](self, *args, **kwargs)

        return write

    for name in WRITES:
        monkeypatch.setattr(Database, name, mortal(name))
