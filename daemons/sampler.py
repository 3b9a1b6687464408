"""Runs a sampler as a unit of the role `sampler`: `python -m daemons.sampler`.

Invariants:
- The unit opens its owner before any other write to the store, and is ready then.
- The unit claims no record before weights are published.
- A drain finishes or returns the records at work and closes the owner last, so that no record waits until a lease
  expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from agentrl.config import policy_rules
from agentrl.config.http_token import http_token
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.files.frames import FilesError
from agentrl.files.unit_files import UnitFiles
from agentrl.images.run_images import limits_of
from agentrl.rollout import chat_format, live_sections, user_code
from agentrl.rollout.attempt import SamplerContext
from agentrl.rollout.chat_format import ChatFormat
from agentrl.rollout.other_models import Helpers
from agentrl.rollout.record_ending import RecordEnder
from agentrl.rollout.sampler import Sampler
from agentrl.rollout.sampler_knobs import SamplerKnobs
from agentrl.rollout.sampler_reporting import WaitMeter, reporting
from agentrl.rollout.scorers import close_scorers
from agentrl.rollout.service_directory import SamplerToolbox, ServiceDirectory
from agentrl.rollout.shown_images import DatabaseShelf, ShownImages
from agentrl.rollout.user_code_faults import UserCodeFaults
from agentrl.store import publications, run_database
from agentrl.store.call_writer import Writer
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.other_model_calls import StoredLedger
from agentrl.store.owners import Lease
from agentrl.tracing import log_format
from agentrl.unit import Unit, run_unit
from daemons import run_files

log = logging.getLogger("sampler")
LOOK_EVERY_S = 0.5
NO_PROGRESS_AT_MOST_S = 120.0
"""The loop turns several times a second; a sampler without progress for this long hangs."""
START_AT_MOST_S = 600.0
"""Datasets may be large."""
FIRST_WEIGHTS_WITHIN_S = 3600.0
"""A trainer may warm up before it publishes."""


async def main(unit: Unit) -> None:
    if unit.state_dir is None:
        raise ConfigError("A sampler needs the state directory of its run.", hint="Start it with `agentrl up`.")
    log_format.set_up()
    files, config = await run_files.prepared(unit, "sampler")
    with unit.phase("reading code and datasets", at_most_s=START_AT_MOST_S):
        user_code.load(config)
    knobs = SamplerKnobs(unit, config)
    token = http_token(unit.state_dir)
    database = await run_database.open_database(config, unit.state_dir)
    directory = ServiceDirectory(
        database, token, lambda url: SamplerToolbox(url, token), max_lag=config.rollout.engine_max_lag
    )
    try:
        life = f"{unit.name}.{unit.incarnation}"
        lease = Lease(database, life, unit=unit.name, role="sampler", run=unit.run)
        await lease.open()
        unit.ready()
        chat = await _first_chat_format(unit, config, database, lease, files)
        if chat is not None:
            for sentence in (chat.rewrites, *chat_format.other_calls(chat, config)):
                if sentence:
                    log.warning("%s", sentence)
            await directory.look()
            waits = WaitMeter(unit)
            helpers = Helpers(config, StoredLedger(database, unit.name))
            sampler = Sampler(
                _context(waits, config, database, lease, directory, chat, helpers),
                concurrency=knobs.concurrency.value,
                settings=knobs.take,
                tick=unit.tick,
            )
            knobs.of(sampler)
            following = asyncio.create_task(
                live_sections.follow(unit.run_dir, config, helpers.configure, lambda: files.prepare("sampler")),
                name="follow the run file",
            )
            try:
                async with reporting(unit, sampler, waits):
                    with unit.phase("sampling", at_most_s=NO_PROGRESS_AT_MOST_S):
                        await sampler.run()
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await helpers.models.close()
        await lease.close()
    finally:
        await close_scorers()
        await directory.close()
        await database.close()


def _context(
    waits: WaitMeter,
    config: RunConfig,
    database: Database,
    lease: Lease,
    directory: ServiceDirectory,
    chat: ChatFormat,
    helpers: Helpers,
) -> SamplerContext:
    faults = UserCodeFaults(waits.unit.problem)
    return SamplerContext(
        config=config,
        database=database,
        writer=Writer(database, lease.certain),
        lease=lease,
        directory=directory,
        endings=RecordEnder(database, lease, policy_rules.group_rule(config), faults, wait=waits.wait),
        template=chat.template,
        vocabulary=chat.vocabulary,
        wait=waits.wait,
        images=ShownImages(DatabaseShelf(database), chat.images, most_bytes=limits_of(config).bytes),
        faults=faults,
        helpers=helpers,
    )


async def _first_chat_format(
    unit: Unit, config: RunConfig, database: Database, lease: Lease, files: UnitFiles
) -> ChatFormat | None:
    """The chat format of the first published model; None if this sampler is drained before that."""
    keeping = asyncio.create_task(lease.keep(), name="keep the lease")
    waiting = unit.wait("the first weights", on="trainer-0", at_most_s=FIRST_WEIGHTS_WITHIN_S)
    try:
        with unit.phase("waiting for weights", at_most_s=None), waiting:
            while not unit.draining:
                if keeping.done():
                    keeping.result()
                with contextlib.suppress(StoreUnavailableError, FilesError):
                    if (newest := await publications.newest(database)) is not None:
                        await files.bring(newest.path, publications.tokenizer_files(newest))
                        return chat_format.of_run(unit.run_dir / newest.path, config)
                unit.status("waits for the first weights")
                await unit.sleep_async(LOOK_EVERY_S)
        return None
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


if __name__ == "__main__":
    run_unit(main)
