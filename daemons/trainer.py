"""The main loop of the trainer: `python -m daemons.trainer`, as a unit of the role `trainer`.

Invariants: it is ready when it has taken over the lineage and its starting weights are published; it ends with 0 when
the data is at its end or the steps are done, and a drain ends it between two steps with a checkpoint.

With `--from-dump DIR` it trains recorded batches instead, without a database, and writes the weights to `--out`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.store import access, indexes
from agentrl.training import checkpoints, dumps
from agentrl.training.checkpoints import Progress
from agentrl.training.knobs import Knobs
from agentrl.training.learner import Learner
from agentrl.training.takeover import settings_of
from agentrl.training.trainer import Trainer
from agentrl.unit import Unit, run_unit

DRAIN_WITHIN_S = 120.0


async def main(unit: Unit) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    given = _options()
    config = access.configuration(unit.run_dir)
    torch.set_num_threads(config.training.threads)
    if given.from_dump is not None:
        _train_from_dump(unit, config, given)
        return
    if unit.state_dir is None:
        raise ConfigError("A trainer needs the state directory of its run.", hint="Start it with `agentrl up`.")
    unit.on_drain(lambda: unit.extend_stop(DRAIN_WITHIN_S))
    database = access.open_database(config, unit.state_dir)
    try:
        await indexes.ensure(database)
        await Trainer(unit, database, config, dump=given.dump).run()
    finally:
        await database.close()


def _train_from_dump(unit: Unit, config: RunConfig, given: argparse.Namespace) -> None:
    if given.start is None or given.out is None:
        raise ConfigError("--from-dump needs --start (a model or a checkpoint) and --out.")
    learner = Learner(given.start, settings_of(config), on_progress=unit.tick)
    after_step = 0
    if (given.start / checkpoints.PROGRESS_FILE).is_file():
        checkpoints.restore_optimizers(given.start, learner)
        after_step = checkpoints.read_progress(given.start).step
    plan = Knobs(unit, config, tuple).take()
    learner.optimizers.set_learning_rate(plan.learning_rate)
    unit.ready()
    for batch, result in dumps.train_from_dumps(learner, given.from_dump, plan.loss, after_step=after_step):
        after_step = batch.step
        print(f"step {batch.step}: loss {result.metrics.get('loss', 0.0):.6g}", flush=True)
    checkpoints.write_checkpoint(given.out, learner, Progress(step=after_step, version=0))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m daemons.trainer", description="The trainer of a run.")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="record every batch there")
    parser.add_argument("--from-dump", type=Path, metavar="DIR", help="train these recorded batches instead")
    parser.add_argument("--start", type=Path, metavar="DIR", help="with --from-dump: model or checkpoint to start from")
    parser.add_argument("--out", type=Path, metavar="DIR", help="with --from-dump: where the weights are written")
    return parser.parse_args()


if __name__ == "__main__":
    run_unit(main)
