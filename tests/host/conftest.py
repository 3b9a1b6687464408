from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.harness import Bench, home


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(home(tmp_path))
