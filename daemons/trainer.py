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
from collections.abc import Mapping

import torch

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.files.pieces import Content
from agentrl.files.unit_files import UnitFiles
from agentrl.http.run_hosts import way
from agentrl.store import indexes, run_database
from agentrl.store.database import Database
from agentrl.tracing import log_format
from agentrl.training import rank_processes, ranks
from agentrl.training.rank_files import Bring, RankFiles
from agentrl.training.resume import settings_of
from agentrl.training.trainer import Trainer
from agentrl.unit import Unit, run_unit
from daemons import run_files

DRAIN_WITHIN_S = 120.0
RANKS_WITHIN_S = 300.0
FOLLOWS = "follows rank 0"

log = logging.getLogger("trainer")


async def main(unit: Unit) -> None:
    log_format.set_up()
    files, config = await run_files.prepared(unit, "trainer")
    torch.set_num_threads(config.training.threads)
    if unit.state_dir is None:
        raise ConfigError("A trainer needs the state directory of its run.", hint="Start it with `agentrl up`.")
    unit.on_drain(lambda: unit.extend_stop(DRAIN_WITHIN_S))
    if not rank_processes.leads():
        await follow(unit, config, files)
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
        leading = ranks.leading(settings_of(config), files_of_rank(unit, config))
        load = await asyncio.to_thread(leading.__enter__)
    async with contextlib.AsyncExitStack() as stack:
        stack.push(leading)
        await Trainer(unit, database, config, load).run()


async def follow(unit: Unit, config: RunConfig, files: UnitFiles) -> None:
    """Follow rank 0, which decides what is done and when it ends, even after a drain, which all ranks receive."""
    settings, loop = settings_of(config), asyncio.get_running_loop()

    def bring(directory: str, contents: Mapping[str, Content]) -> None:
        asyncio.run_coroutine_threadsafe(files.bring(directory, contents), loop).result()
        unit.status(FOLLOWS)

    with unit.phase("waiting for rank 0", at_most_s=RANKS_WITHIN_S):
        channel = await asyncio.to_thread(ranks.Channel, settings)
    unit.ready()
    unit.status(FOLLOWS)
    own = files_of_rank(unit, config, bring)
    await asyncio.to_thread(ranks.follow, channel, settings, own, on_progress=unit.tick)


def files_of_rank(unit: Unit, config: RunConfig, bring: Bring | None = None) -> RankFiles:
    model = config.model.path if config.model is not None else ""
    found = way()
    return RankFiles(unit.run_dir, model, host="" if found is None else found.here, bring=bring)


if __name__ == "__main__":
    run_unit(main)
