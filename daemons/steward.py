"""Runs the steward as a unit of the role `steward`: `python -m daemons.steward`.

Invariants:
- The unit is ready when the indexes exist, the datasets were read and its owner is open.
- If the database does not answer, the unit waits and does not end.
- A drain ends between two rounds.
- A pause stops admission and nothing else.
- With `--read-only` the unit answers queries and writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Mapping

from agentrl.config.http_token import http_token
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DiskError
from agentrl.files.unit_files import UnitFiles
from agentrl.queries.dispatcher import Dispatcher
from agentrl.steward import admission, epochs, settings
from agentrl.steward.epochs import Source
from agentrl.steward.replays import STOPPED_WITHIN_S, ReplayRunner
from agentrl.steward.steward import Steward
from agentrl.steward.steward_knobs import StewardKnobs
from agentrl.store import indexes, run_database
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.telemetry.data_plane_metrics import HELD_OUT_TRAINED, READY, REJECTED, STAGE, UNDER_WAY, named
from agentrl.tracing import log_format
from agentrl.unit import Unit, run_unit
from daemons import run_files

log = logging.getLogger("steward")

READ_ONLY = "--read-only"
PACE_S = 0.15
"""The pause between rounds while records change. With a shorter one, each round would query everything and find one or
two free seats.
"""
MOST_IDLE_S = 0.5
"""The pause between rounds while nothing changes: nothing is sampled, or the bound is reached and a step trains."""
PUBLISH_WAITS_EVERY_S = 2.0
ROUND_AT_MOST_S = 120.0
START_AT_MOST_S = 600.0
"""Datasets may be large."""


async def main(unit: Unit) -> None:
    log_format.set_up()
    if unit.state_dir is None:
        raise ConfigError("A steward needs the state directory of its run.", hint="Start it with `agentrl up`.")
    config = run_database.configuration(unit.run_dir)
    database = await run_database.open_database(config, unit.state_dir)
    try:
        if READ_ONLY in sys.argv[1:]:
            await _only_answer(unit, config, database)
            return
        with unit.phase("starting", at_most_s=START_AT_MOST_S):
            unit.status("reading datasets")
            sources = epochs.read_sources(config)
            _report_leaks(unit, sources)
        with unit.phase("building indexes", at_most_s=indexes.BUILT_WITHIN_S):
            await indexes.ensure(database)
        with unit.phase("starting", at_most_s=START_AT_MOST_S):
            steward = Steward(
                database,
                settings.from_config(config),
                sources,
                incarnation=f"{unit.name}.{unit.incarnation}",
                unit=unit.name,
                run=unit.run,
                run_dir=unit.run_dir,
            )
            await steward.start()
        unit.on_death(steward.died)
        replays = ReplayRunner(database, config.tools, owner=steward.owner, token=http_token(unit.state_dir))
        dispatcher = Dispatcher(
            database, lambda: steward.settings, sources, unit.run_dir, run=unit.run, replays=replays
        )
        unit.answer(dispatcher.answer)
        StewardKnobs(unit, config, lambda: steward.settings, counts=lambda: steward.counts, on_change=steward.follow)
        unit.ready()
        replaying = asyncio.create_task(replays.run(), name="replays")
        copying = asyncio.create_task(
            run_files.keep_newest_checkpoint(database, UnitFiles.of_this_unit()), name="copy checkpoints"
        )
        try:
            await _serve(unit, steward, replaying)
            unit.extend_stop(STOPPED_WITHIN_S)
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)
            replays.stop()
            await replaying
        await steward.stop()
    finally:
        await database.close()


async def _only_answer(unit: Unit, config: RunConfig, database: Database) -> None:
    """Serve queries of a run that is up only for reading. Its datasets may be gone, so they are not read."""
    chosen = settings.from_config(config)
    unit.answer(Dispatcher(database, lambda: chosen, None, unit.run_dir, run=unit.run).answer)
    unit.ready()
    unit.status("answers questions and changes nothing")
    while not unit.draining:
        unit.tick()
        await unit.sleep_async(MOST_IDLE_S)


def _report_leaks(unit: Unit, sources: Mapping[str, Source]) -> None:
    """Log each leak. The status has only their number and the place of the first, because the feed carries no
    prompts.
    """
    for name, source in sources.items():
        for leak in source.leaks:
            log.warning("%s", leak.sentence())
        if source.leaks:
            unit.metric(named(HELD_OUT_TRAINED, f"{name}/{source.leaks[0].lines()}"), len(source.leaks))


async def _serve(unit: Unit, steward: Steward, replaying: asyncio.Task[None]) -> None:
    published_at, pause_s, before = float("-inf"), PACE_S, steward.counts
    watched_at = time.monotonic()
    with unit.phase("serving", at_most_s=ROUND_AT_MOST_S):
        while not unit.draining:
            steward.paused = unit.paused
            if replaying.done():
                replaying.result()
            try:
                done = await steward.round()
                if time.monotonic() - published_at >= PUBLISH_WAITS_EVERY_S:
                    unit.publish_waits(await steward.waits())
                    unit.metric(REJECTED.name, await steward.rejected_version())
                    published_at = time.monotonic()
                if time.monotonic() - watched_at >= steward.settings.reward_watch.every_s:
                    unit.metrics(await steward.watch_reward())
                    watched_at = time.monotonic()
            except (StoreUnavailableError, DiskError) as away:
                log.warning("%s", away.message)
                unit.status(f"waits for MongoDB: {away.message}")
                with unit.wait("MongoDB", on="mongo-0", at_most_s=ROUND_AT_MOST_S):
                    await unit.sleep_async(1.0)
                unit.tick()
                continue
            unit.tick()
            unit.status(done.sentence())
            counted = done.admitted.counts
            unit.metric(UNDER_WAY.name, counted.in_flight)
            unit.metric(READY.name, counted.ready)
            if steward.settings.stages:
                unit.metric(STAGE.name, steward.stage + 1)
            pause_s = PACE_S if done.anything or counted != before else min(2 * pause_s, MOST_IDLE_S)
            before = counted
            if done.admitted.groups < admission.MOST_AT_ONCE:
                await unit.sleep_async(pause_s)


if __name__ == "__main__":
    run_unit(main)
