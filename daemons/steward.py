"""The main loop of the steward: `python -m daemons.steward`, as a unit of the role `steward`.

Invariants: it is ready when the indexes are there, the datasets were read and its owner is open; a database that is
away is waited for, not a reason to end; a drain ends between two rounds.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TypeVar

from agentrl.errors import ConfigError, DiskError
from agentrl.steward import epochs, rules
from agentrl.steward.queries.desk import Desk
from agentrl.steward.steward import Steward
from agentrl.store import access, indexes
from agentrl.store.database import StoreUnavailableError
from agentrl.telemetry.services import REJECTED
from agentrl.unit import Unit, run_unit

log = logging.getLogger("steward")
N = TypeVar("N", int, float)

IDLE_S = 0.1
MOST_IDLE_S = 0.5
"""Between looks while nothing is to be done. A batch that is trained frees capacity every few seconds at most."""
TELL_WAITS_EVERY_S = 2.0
ROUND_AT_MOST_S = 120.0
START_AT_MOST_S = 600.0
"""Datasets may be large."""


async def main(unit: Unit) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    if unit.state_dir is None:
        raise ConfigError("A steward needs the state directory of its run.", hint="Start it with `agentrl up`.")
    config = access.configuration(unit.run_dir)
    database = access.open_database(config, unit.state_dir)
    try:
        with unit.phase("starting", at_most_s=START_AT_MOST_S):
            unit.status("reading datasets")
            sources = epochs.read_sources(config)
            for leak in (leak for source in sources.values() for leak in source.leaks):
                log.warning("%s", leak.sentence())
            await indexes.ensure(database)
            steward = Steward(
                database,
                rules.from_config(config),
                sources,
                incarnation=f"{unit.name}.{unit.incarnation}",
                unit=unit.name,
                run_dir=unit.run_dir,
            )
            await steward.start()
        unit.on_death(steward.died)
        unit.answer(Desk(database, lambda: steward.rules, sources).answer)
        _knobs(unit, steward)
        unit.ready()
        await _serve(unit, steward)
        await steward.stop()
    finally:
        await database.close()


async def _serve(unit: Unit, steward: Steward) -> None:
    told_at, idle_s = float("-inf"), IDLE_S
    with unit.phase("serving", at_most_s=ROUND_AT_MOST_S):
        while not unit.draining:
            await unit.park_while_paused_async()
            try:
                done = await steward.round()
                if time.monotonic() - told_at >= TELL_WAITS_EVERY_S:
                    unit.tell_waits(await steward.waits())
                    unit.metric(REJECTED.name, await steward.rejected_version())
                    told_at = time.monotonic()
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
            unit.metric("in_flight", counted.in_flight)
            unit.metric("ready", counted.ready)
            idle_s = IDLE_S if done.anything else min(2 * idle_s, MOST_IDLE_S)
            if not done.anything:
                await unit.sleep_async(idle_s)


def _knobs(unit: Unit, steward: Steward) -> None:
    """What admission goes by, and what is kept. A group that is under way keeps what it was admitted with."""
    now = steward.rules
    _own(unit, steward, "max_in_flight", now.max_in_flight, "Episodes that may be open at once.", minimum=1)
    _own(unit, steward, "n", now.n, "Episodes of one task.", minimum=2, scientific=True)
    _own(unit, steward, "temperature", now.temperature, "Sampling temperature.", minimum=0.01, scientific=True)
    _own(unit, steward, "max_tokens", now.max_tokens, "Tokens of one model call.", minimum=1, scientific=True)
    _kept(unit, steward, "details_s", now.details_s, "Seconds for which calls of consumed tasks are kept; 0: for ever.")
    _kept(unit, steward, "data_max_bytes", now.data_max_bytes, "Database size above which the oldest of them go.")
    _kept(unit, steward, "disk_reserve_bytes", now.disk_reserve_bytes, "Free bytes below which nothing is admitted.")


def _kept(unit: Unit, steward: Steward, name: str, default: N, help: str) -> None:
    says = "with the next look at the disks; what was removed does not come back"
    _own(unit, steward, name, default, help, minimum=0, says=says)


def _own(
    unit: Unit,
    steward: Steward,
    name: str,
    default: N,
    help: str,
    *,
    minimum: float,
    scientific: bool = False,
    says: str = "for what is admitted from now on; groups under way keep what they have",
) -> None:
    def change(value: N) -> None:
        steward.rules = steward.rules.changed(**{name: value})

    def preview(value: N) -> str:
        steward.rules.changed(**{name: value})  # refuses what could not be followed
        return f"{name} becomes {value} {says}"

    knob = unit.knob(
        name, default, help=help, minimum=minimum, scientific=scientific, on_change=change, preview=preview
    )
    change(knob.value)


if __name__ == "__main__":
    run_unit(main)
