"""Runs the trainer as a unit of the role `trainer`: `python -m daemons.trainer`.

Invariants:
- The unit is ready when it has taken over the lineage and published its starting weights.
- The unit ends with 0 when the data ends or all steps are done.
- A drain ends the unit between two steps, with a checkpoint.
- With `training.parallel` the units are the ranks of a gang. Rank 0 leads; the others follow it, and end when it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import torch

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.store import indexes, run_database
from agentrl.store.database import Database
from agentrl.tracing import log_format
from agentrl.training import rank_processes, ranks
from agentrl.training.resume import settings_of
from agentrl.training.trainer import Trainer
from agentrl.unit import Unit, run_unit
from daemons import run_files

DRAIN_WITHIN_S = 120.0
RANKS_WITHIN_S = 300.0

log = logging.getLogger("trainer")


async def main(unit: Unit) -> None:
    log_format.set_up()
    _, config = await run_files.prepared(unit, "trainer")
    torch.set_num_threads(config.training.threads)
    if unit.state_dir is None:
        raise ConfigError("A trainer needs the state directory of its run.", hint="Start it with `agentrl up`.")
    unit.on_drain(lambda: unit.extend_stop(DRAIN_WITHIN_S))
    if not rank_processes.leads():
        await follow(unit, config)
        return
    database = await run_database.open_database(config, unit.state_dir)
    try:
        with unit.phase("building indexes", at_most_s=indexes.BUILT_WITHIN_S):
            await indexes.ensure(database)
        await train(unit, database, config)
    finally:
        await database.close()


async def train(unit: Unit, database: Database, config: RunConfig) -> None:
    if config.training.parallel.ranks == 1:
        await Trainer(unit, database, config).run()
        return
    with unit.phase("waiting for its ranks", at_most_s=RANKS_WITHIN_S):
        leading = ranks.leading(settings_of(config))
        load = await asyncio.to_thread(leading.__enter__)
    async with contextlib.AsyncExitStack() as stack:
        stack.push(leading)
        await Trainer(unit, database, config, load).run()


async def follow(unit: Unit, config: RunConfig) -> None:
    """Rank 0 decides what is done and when it ends, also after a drain, which reaches all ranks."""
    settings = settings_of(config)
    with unit.phase("waiting for rank 0", at_most_s=RANKS_WITHIN_S):
        channel = await asyncio.to_thread(ranks.Channel, settings)
    unit.ready()
    unit.status("follows rank 0")
    await asyncio.to_thread(ranks.follow, channel, settings, on_progress=unit.tick)


if __name__ == "__main__":
    run_unit(main)
