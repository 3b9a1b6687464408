"""Views that open before the first connection show a running query and not a failed one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.client import Client
from agentrl.errors import NoCoordinatorError
from tests.cli.scripted import Scripted
from tests.tui.conftest import Screen, populate
from tests.tui.steward_answers import RECORD, answers
from tui.app import Console
from tui.connection import Connection

NOT_FOUND = "The run demo hides."


class Held:
    """A connection whose first attempt waits for the test."""

    def __init__(self, client: Client) -> None:
        self.go_on = asyncio.Event()
        self.in_vain = False
        self._client = client

    async def __aenter__(self) -> Client:
        await self.go_on.wait()
        if self.in_vain:
            raise NoCoordinatorError(NOT_FOUND)
        return await self._client.__aenter__()

    async def __aexit__(self, *why: Any) -> None:
        await self._client.__aexit__(*why)


@asynccontextmanager
async def opened_early(coordinator: Scripted) -> AsyncIterator[tuple[Screen, Held]]:
    held = Held(Client.connect(state_dir=coordinator.state_dir, timeout_s=5.0))
    connect: Any = lambda: held  # noqa: E731
    app = Console(lambda mirror: Connection(mirror, connect))
    async with app.run_test(size=(100, 30)) as pilot:
        yield Screen(app, pilot), held


@pytest.mark.parametrize(("keys", "shown"), [(("7",), RECORD), (("7", "T"), "1 task"), (("7", "A"), "All sums agree.")])
async def test_views_show_asking_until_the_first_connection(
    coordinator: Scripted, keys: tuple[str, ...], shown: str
) -> None:
    populate(coordinator)
    answers(coordinator)
    async with opened_early(coordinator) as (screen, held):
        await screen.press(*keys)
        await screen.shows("asking")
        await screen.round()
        assert "not answered" not in screen.text
        assert "No coordinator answers" not in screen.text
        held.go_on.set()
        await screen.shows(shown)


async def test_needs_are_unknown_before_the_first_data(coordinator: Scripted) -> None:
    async with opened_early(coordinator) as (screen, held):
        await screen.shows("connecting", "not known yet")
        assert "nothing" not in screen.text
        held.go_on.set()
        await screen.shows("✓ nothing")


async def test_views_show_not_answered_without_a_coordinator(coordinator: Scripted) -> None:
    async with opened_early(coordinator) as (screen, held):
        held.in_vain = True
        await screen.press("7")
        await screen.shows("asking")
        held.go_on.set()
        await screen.shows("not answered", NOT_FOUND)
