"""Runs with tool servers that are attacked, and the toolboxes of `tests/toolbox`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sandboxes.attacked_run import Run, attacked
from tests.toolbox.conftest import make as make


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    async with attacked(Run(tmp_path, monkeypatch), **getattr(request, "param", {})) as made:
        yield made


@pytest.fixture
def unstarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Without a toolbox, and without cgroups, which change nothing about files."""
    monkeypatch.setattr("agentrl.sandboxes.sandbox_cgroups.make", lambda sandbox: None)
    return Run(tmp_path, monkeypatch)
