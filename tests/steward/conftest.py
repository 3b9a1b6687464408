"""Fixtures of the tests of the steward."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.store import indexes
from agentrl.store.database import Database
from tests.steward.replaying import House
from tests.toolbox.conftest import faulty


@pytest.fixture
async def house(db: Database, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[House]]]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(*, steward: bool = True, servers: dict[str, ToolServer] | None = None, **of: Any) -> House:
            await indexes.ensure(db)
            made = House(db, tmp_path, servers or {"faulty": faulty(**of)})
            await stack.enter_async_context(made.toolbox_up())
            if steward:
                await stack.enter_async_context(made.steward_up())
            return made

        yield start
