from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.harness import SLEEP, Bench, home


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(home(tmp_path))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no run."""
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()
