"""Runs a sampler as a unit of the role `sampler`: `python -m daemons.sampler`.

Invariants: opening its owner is its first act in the store, and then it is ready, though it claims nothing before there
are weights; a drain gives back or finishes what is under way, and closes the owner last, so that nothing of it waits
for a lease to be past.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator

from agentrl.config import policy_rules
from agentrl.config.http_token import http_token
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.rollout import chat_format, user_code
from agentrl.rollout.attempt import SamplerContext
from agentrl.rollout.chat_format import ChatFormat
from agentrl.rollout.record_ending import RecordEnder
from agentrl.rollout.sampler import FINISH_WITHIN_S, Sampler
from agentrl.rollout.sampler_knobs import SamplerKnobs
from agentrl.rollout.scorers import close_scorers
from agentrl.rollout.service_directory import SamplerToolbox, ServiceDirectory
from agentrl.store import run_database
from agentrl.store.call_writer import Writer
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.owners import Lease
from agentrl.telemetry.services import BUSY, IN_MODEL, IN_TOOLS, Meter
from agentrl.unit import Unit, run_unit

log = logging.getLogger("sampler")
LOOK_EVERY_S = 0.5
STANDS_AT_MOST_S = 120.0
"""The loop turns several times a second; a sampler that stands this long hangs."""
START_AT_MOST_S = 600.0
"""Datasets may be large."""
FIRST_WEIGHTS_WITHIN_S = 3600.0
"""A trainer may warm up before it publishes."""


async def main(unit: Unit) -> None:
    if unit.state_dir is None:
        raise ConfigError("A sampler needs the state directory of its run.", hint="Start it with `agentrl up`.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    config = run_database.configuration(unit.run_dir)
    with unit.phase("reading code and datasets", at_most_s=START_AT_MOST_S):
        user_code.load(config)
    knobs = SamplerKnobs(unit, config)
    token = http_token(unit.state_dir)
    database = run_database.open_database(config, unit.state_dir)
    directory = ServiceDirectory(
        database, token, lambda url: SamplerToolbox(url, token), max_lag=config.rollout.engine_max_lag
    )
    try:
        life = f"{unit.name}.{unit.incarnation}"
        lease = Lease(database, life, unit=unit.name, role="sampler", run=unit.run)
        await lease.open()
        unit.ready()
        words = await _first_words(unit, database, lease)
        if words is not None:
            if words.difference:
                log.warning("%s", words.difference)
            await directory.look()
            stands = Stands(unit)
            sampler = Sampler(
                _context(stands, config, database, lease, directory, words),
                concurrency=knobs.concurrency.value,
                settings=knobs.take,
                tick=unit.tick,
            )
            knobs.of(sampler)
            async with _telling(unit, sampler, stands):
                with unit.phase("sampling", at_most_s=STANDS_AT_MOST_S):
                    await sampler.run()
        await lease.close()
    finally:
        await close_scorers()
        await directory.close()
        await database.close()


def _context(
    stands: Stands, config: RunConfig, database: Database, lease: Lease, directory: ServiceDirectory, words: ChatFormat
) -> SamplerContext:
    return SamplerContext(
        config=config,
        database=database,
        writer=Writer(database, lease.certain),
        lease=lease,
        directory=directory,
        endings=RecordEnder(database, lease, policy_rules.group_rule(config)),
        template=words.template,
        vocabulary=words.vocabulary,
        wait=stands.wait,
    )


async def _first_words(unit: Unit, database: Database, lease: Lease) -> ChatFormat | None:
    """What the model speaks, once there is one; None if this sampler is drained before."""
    keeping = asyncio.create_task(lease.keep(), name="keep the lease")
    waiting = unit.wait("the first weights", on="trainer-0", at_most_s=FIRST_WEIGHTS_WITHIN_S)
    try:
        with unit.phase("waiting for weights", at_most_s=None), waiting:
            while not unit.draining:
                if keeping.done():
                    keeping.result()
                with contextlib.suppress(StoreUnavailableError):
                    if (words := await chat_format.published(database, unit.run_dir)) is not None:
                        return words
                unit.status("waits for the first weights")
                await unit.sleep_async(LOOK_EVERY_S)
        return None
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@contextlib.asynccontextmanager
async def _telling(unit: Unit, sampler: Sampler, stands: Stands) -> AsyncIterator[None]:
    """Orders go in, figures come out."""
    task = asyncio.create_task(_tell(unit, sampler, stands), name="tell")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _tell(unit: Unit, sampler: Sampler, stands: Stands) -> None:
    ended = 0
    meter = Meter(time.monotonic())
    while True:
        sampler.paused = unit.paused
        if unit.draining and not sampler.draining:
            unit.extend_stop(2 * FINISH_WITHIN_S)
            sampler.drain()
        elif not unit.draining and sampler.draining:
            sampler.cancel_drain()
        running = f"{sampler.running} of {sampler.concurrency} episodes"
        unit.status(f"{running}; {sampler.idle_because}" if sampler.idle_because else running)
        unit.metric("running", sampler.running)
        unit.metric("slots", sampler.concurrency)
        unit.metric("records_per_s", (sampler.ended - ended) / LOOK_EVERY_S)
        ended = sampler.ended
        meter.set(sampler.running, sampler.concurrency, time.monotonic())
        for name, value in (meter.read(time.monotonic()) | stands.read()).items():
            unit.metric(name, value)
        if version := sampler.version:
            unit.weights = version
        await asyncio.sleep(LOOK_EVERY_S)


class Stands:
    """In what episodes stand: waits are shown, and their seconds are added up."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._meters = {"toolbox": Meter(time.monotonic()), "engine": Meter(time.monotonic())}
        self._standing = dict.fromkeys(self._meters, 0)

    @contextlib.contextmanager
    def wait(self, what: str, on: str, at_most_s: float) -> Iterator[None]:
        """`on` is a unit or a group."""
        group = on.rpartition("-")[0] or on
        with self._unit.wait(what, on=on, at_most_s=at_most_s):
            self._add(group, 1)
            try:
                yield
            finally:
                self._add(group, -1)

    def read(self) -> dict[str, float]:
        now = time.monotonic()
        seconds = {group: meter.read(now)[BUSY.name] for group, meter in self._meters.items()}
        return {IN_TOOLS.name: seconds["toolbox"], IN_MODEL.name: seconds["engine"]}

    def _add(self, group: str, count: int) -> None:
        if group in self._meters:
            self._standing[group] += count
            self._meters[group].set(self._standing[group], self._standing[group], time.monotonic())


if __name__ == "__main__":
    run_unit(main)
