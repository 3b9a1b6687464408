"""Weights without a manifest, for tests and measurements that are about something else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl.engines.embedded.engine import EmbeddedEngine
from agentrl.engines.embedded.weights import load_unverified


async def serve(engine: EmbeddedEngine, path: Path, version: int) -> None:
    model = await asyncio.to_thread(load_unverified, path, version)
    await engine._order(lambda: engine._slots.switch(model))
