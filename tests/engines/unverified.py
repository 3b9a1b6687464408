"""Weights without a manifest, for tests and benchmarks of other things."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.embedded.model_loading import model_of
from agentrl.engines.manifest import CONFIG_FILE, WEIGHTS_FILE


def load(path: Path, version: int) -> Any:
    return model_of(path, version, (path / CONFIG_FILE).read_bytes(), (path / WEIGHTS_FILE).read_bytes())


async def serve(engine: EmbeddedEngine, path: Path, version: int) -> None:
    model = await asyncio.to_thread(load, path, version)
    await engine._order(lambda: engine._slots.switch(model))
