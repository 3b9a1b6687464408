"""Loads weights without a manifest, for tests and benchmarks that are not about publications."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.embedded.model_loading import read_unpublished


def load(path: Path, version: int, device: str = "cpu") -> Any:
    return read_unpublished(path, version, device)


async def serve(engine: EmbeddedEngine, path: Path, version: int) -> None:
    await engine.serve_unpublished(path, version)
