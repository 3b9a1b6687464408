"""What every room's tests may ask for: a real MongoDB, started with the first test that needs it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentrl.store.database import Database


def pytest_configure() -> None:
    """Tests that run in the background ignore what a terminal sends, and every program that they start would, too."""

    def ignored(*_: object) -> None:
        """Unlike SIG_IGN, this is not inherited."""

    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, ignored)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew", action="store_true", help="take over what screens look like now")


@pytest.fixture(scope="session")
def mongo_url() -> Iterator[str]:
    from tests.store.server import shared_server

    with shared_server() as url:
        yield url


@pytest.fixture
async def db(mongo_url: str) -> AsyncIterator[Database]:
    """A database of a real server, empty at the start of each test."""
    from tests.store.server import empty_database

    async with empty_database(mongo_url) as database:
        yield database
