from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client.coordinator import SmallCoordinator


@pytest.fixture
async def coordinator() -> AsyncIterator[SmallCoordinator]:
    """One that is up. Its directory has a name short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="arl") as directory:
        small = SmallCoordinator(Path(directory))
        small.start()
        yield small
        small.die()
