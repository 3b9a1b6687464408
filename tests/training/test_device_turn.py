"""The trainer computes on a device that it shares with engines only after they have left it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from agentrl.store import service_registry
from agentrl.store.database import Database
from agentrl.store.documents import Service
from tests.training.rollouts import closed_groups, configuration, trainer
from tests.waiting import aeventually


async def test_a_step_waits_for_the_engines_and_gives_the_device_back(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 2)
    config = configuration(tmp_path, tiny, steps=1)
    config = config.model_copy(update={"engines": config.engines.model_copy(update={"takes_turns": True})})
    engine = Service(id="engine-0.1", unit="engine-0", kind="engine", state="serving", version=1)
    leaves = asyncio.Event()

    async def report() -> None:
        while True:
            state = "parked" if leaves.is_set() else "serving"
            await service_registry.report(db, msgspec.structs.replace(engine, state=state))
            await asyncio.sleep(0.1)

    reporting = asyncio.create_task(report())
    made = trainer(db, config, tmp_path)
    running = asyncio.create_task(made.run())
    try:
        await aeventually(lambda: service_registry.turn_is_taken(db))
        assert await db.count("Step", {}) == 0
        assert made._turn is not None
        assert not made._turn.held
        leaves.set()
        await running
        assert await db.count("Step", {"status": "committed"}) == 1
        assert not await service_registry.turn_is_taken(db)
        assert 0 < made._turn.share < 1
    finally:
        reporting.cancel()
        await asyncio.wait([reporting])
