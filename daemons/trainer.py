"""Runs the trainer as a unit of the role `trainer`: `python -m daemons.trainer`.

Invariants:
- The unit is ready when it has taken over the lineage and published its starting weights.
- The unit ends with 0 when the data ends or all steps are done.
- A drain ends the unit between two steps, with a checkpoint.
- With `training.parallel` the unit is the rank that leads; the others are its children, and end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys

import torch

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, ExitCode
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
    command = [sys.executable, "-m", "agentrl.training.follower", str(unit.run_dir)]
    with rank_processes.followers(command, config.training.parallel.ranks, _end_with_a_rank):
        with unit.phase("waiting for its ranks", at_most_s=RANKS_WITHIN_S):
            leading = ranks.leading(settings_of(config))
            load = await asyncio.to_thread(leading.__enter__)
        async with contextlib.AsyncExitStack() as stack:
            stack.push(leading)
            await Trainer(unit, database, config, load).run()


def _end_with_a_rank(code: int) -> None:
    """A collective that lacks a rank may never return, so the process ends at once. The next one begins at the newest
    checkpoint, as after any other death."""
    log.error("a rank of the trainer ended with status %d: all ranks start again", code)
    os._exit(ExitCode.FAILED)


if __name__ == "__main__":
    run_unit(main)
