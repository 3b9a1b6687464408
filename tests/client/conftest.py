from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import agentrl.control.state.feed_publisher as feed_module
from tests.client.small_coordinator import SmallCoordinator


@pytest.fixture
async def coordinator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCoordinator]:
    """A started coordinator whose feed sends five beats a second. Its directory has a short name for socket paths."""
    monkeypatch.setattr(feed_module, "BEAT_S", 0.2)
    with tempfile.TemporaryDirectory(prefix="arl") as directory:
        small = SmallCoordinator(Path(directory))
        small.start()
        yield small
        small.die()
