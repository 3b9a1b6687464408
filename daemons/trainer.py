"""Runs the trainer as a unit of the role `trainer`: `python -m daemons.trainer`.

Invariants:
- The unit is ready when it has taken over the lineage and published its starting weights.
- The unit ends with 0 when the data ends or all steps are done.
- A drain ends the unit between two steps, with a checkpoint.
"""

from __future__ import annotations

import logging
import sys

import torch

from agentrl.errors import ConfigError
from agentrl.store import indexes, run_database
from agentrl.training.trainer import Trainer
from agentrl.unit import Unit, run_unit

DRAIN_WITHIN_S = 120.0


async def main(unit: Unit) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    config = run_database.configuration(unit.run_dir)
    torch.set_num_threads(config.training.threads)
    if unit.state_dir is None:
        raise ConfigError("A trainer needs the state directory of its run.", hint="Start it with `agentrl up`.")
    unit.on_drain(lambda: unit.extend_stop(DRAIN_WITHIN_S))
    database = await run_database.open_database(config, unit.state_dir)
    try:
        with unit.phase("building indexes", at_most_s=indexes.BUILT_WITHIN_S):
            await indexes.ensure(database)
        await Trainer(unit, database, config).run()
    finally:
        await database.close()


if __name__ == "__main__":
    run_unit(main)
