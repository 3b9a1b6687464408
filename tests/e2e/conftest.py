from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import Run, running


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run that has not been started yet."""
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}")
