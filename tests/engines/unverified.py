"""Weights without a manifest, for tests and benchmarks of other things."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.embedded.model_loading import model_of
from agentrl.engines.manifest import CONFIG_FILE
from agentrl.engines.safetensors_layout import ONE_FILE


def load(path: Path, version: int) -> Any:
    shards = {ONE_FILE: bytearray((path / ONE_FILE).read_bytes())}
    return model_of(path, version, (path / CONFIG_FILE).read_bytes(), shards)


async def serve(engine: EmbeddedEngine, path: Path, version: int) -> None:
    model = await asyncio.to_thread(load, path, version)
    await engine._order(lambda: engine._slots.switch(model))
