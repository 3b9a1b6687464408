from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import agentrl.control.state.feed_publisher as feed_module
from tests.client.small_coordinator import SmallCoordinator


@pytest.fixture
async def coordinator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCoordinator]:
    """One that is up, with a feed that beats five times a second. Its directory's name is short enough for a socket."""
    monkeypatch.setattr(feed_module, "BEAT_S", 0.2)
    with tempfile.TemporaryDirectory(prefix="arl") as directory:
        small = SmallCoordinator(Path(directory))
        small.start()
        yield small
        small.die()
