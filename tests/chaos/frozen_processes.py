"""Sleepers: processes that are declared dead while they are stopped, and wake up.

Invariants: the coordinator is stopped as well, so nobody thaws or ends the sleeper but the test; what others took over
while it slept is theirs, and nothing that it still tries changes that; it finds out by itself, and ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.store import checkpoints, lineages, run_database
from agentrl.store.documents import Lineage, load
from agentrl.training.resume import valid_checkpoints
from tests.chaos.fault_injection import LostError, Storm
from tests.chaos.processes import Role, frozen
from tests.chaos.run_under_test import Arena
from tests.chaos.store_reader import Plain

ENDS_WITHIN_S = 120.0
"""A lease is renewed every ten seconds, and a trainer may be in the middle of a step, on a machine that has other
work."""
COMES_WITHIN_S = 150.0
RIVAL = "import sys; sys.argv = sys.argv[1:]; from daemons.steward import main, run_unit; run_unit(main)"
"""A steward of a unit that has the name of its last argument: a second life of the same one would end the first."""
HELD = ["running", "finished", "unscored"]


def sampler(storm: Storm) -> None:
    """Its Records go on elsewhere while it sleeps."""
    books = storm.arena.books
    storm.calm()
    with _nobody_intervenes(storm):
        sleeper = storm.anybody(Role.SAMPLER)
        mine = {"owner": sleeper.incarnation, "status": "running"}
        storm.until(lambda: books.count("Record", mine) > 0, "a record under way", within_s=COMES_WITHIN_S)
        with frozen(sleeper):
            _declare_dead(storm, {"_id": sleeper.incarnation})
            held = {"owner": sleeper.incarnation, "status": {"$in": HELD}}
            names = [record["_id"] for record in books.find("Record", held, "_id")]
            storm.until(lambda: not books.count("Record", held), "its records to be freed", within_s=COMES_WITHIN_S)
            elsewhere = {"_id": {"$in": names}, "owner": {"$nin": ["", sleeper.incarnation]}}
            if names:
                storm.until(lambda: books.count("Record", elsewhere) > 0, "one to go on", within_s=COMES_WITHIN_S)
            taken = {record["_id"]: record["owner"] for record in books.find("Record", elsewhere)}
            storm.say(f"{sleeper} sleeps; {len(taken)} of its {len(names)} records went on elsewhere; it wakes up")
        storm.until(lambda: not sleeper.alive, f"the end of {sleeper}", within_s=ENDS_WITHIN_S)
    storm.expect(sleeper)
    back = books.find("Record", {"_id": {"$in": list(taken)}, "owner": sleeper.incarnation})
    if back:
        raise LostError(f"{sleeper} took back what was not its own any more: {[record['_id'] for record in back]}")


def trainer(storm: Storm) -> None:
    """Another lineage begins while it sleeps in the middle of a step."""
    books = storm.arena.books
    storm.calm()
    with _nobody_intervenes(storm):
        sleeper = storm.anybody(Role.TRAINER)
        step = _a_leased_step(storm)
        with frozen(sleeper):
            former = books.find("Lineage", {"closed": False}, "_id")
            rival = asyncio.run(_take_over(storm.arena))
            versions = books.count("Publication", {"status": {"$in": ["announced", "current", "retained"]}})
            storm.say(f"{sleeper} sleeps with {step['_id']}; {rival.id} begins; it wakes up")
        storm.until(lambda: not sleeper.alive, f"the end of {sleeper}", within_s=ENDS_WITHIN_S)
        closed = [lineage["_id"] for lineage in former]
        later = books.find("Step", {"lineage": {"$in": closed}, "status": {"$in": ["leased", "committed"]}})
        covered = [one for one in later if one["step"] < rival.first_step and one["status"] == "committed"]
        if later != covered:
            raise LostError(f"{sleeper} wrote under a closed lineage: {[one['_id'] for one in later]}")
        now = books.count("Publication", {"status": {"$in": ["announced", "current", "retained"]}})
        if now > versions:
            raise LostError(f"{sleeper} published under a closed lineage")
    storm.expect(sleeper)


def two_stewards(storm: Storm) -> None:
    """A second one keeps house beside the first for a while, and is killed."""
    books = storm.arena.books
    with _second_steward(storm) as unit:
        alive = {"role": "steward", "expired": False, "unit": unit}
        storm.until(lambda: books.count("Owner", alive) > 0, "a second steward", within_s=COMES_WITHIN_S)
        storm.say(f"{unit} keeps house too")
        goal = min(books.committed() + 2, storm.arena.steps)
        storm.until(lambda: books.committed() >= goal, "two steps with two stewards", within_s=2 * COMES_WITHIN_S)
    storm.say(f"killed {unit}")


# ---- inside ----


@contextmanager
def _nobody_intervenes(storm: Storm) -> Iterator[None]:
    coordinator = storm.anybody(Role.COORDINATOR)
    with frozen(coordinator):
        yield


@contextmanager
def _second_steward(storm: Storm) -> Iterator[str]:
    """The name of its unit, which nobody had before. Nobody but the test supervises it, so the test also confirms its
    death: its lease would outlive it."""
    arena = storm.arena
    name = f"rival-{uuid.uuid4().hex[:8]}"
    environ = {
        **os.environ,
        "AGENTRL_RUN": arena.uuid(),
        "AGENTRL_RUN_DIR": str(arena.dir),
        "AGENTRL_STATE_DIR": str(arena.state_dir),
    }
    unit = f"{name}-0"
    with (arena.file.parent / "rival-steward.log").open("ab") as log:
        rival = subprocess.Popen([sys.executable, "-c", RIVAL, name], env=environ, stdout=log, stderr=log)
    try:
        yield unit
    finally:
        rival.kill()
        rival.wait()
        storm.until(lambda: _declare_dead(storm, {"unit": unit}), f"the end of {unit}'s lease", within_s=COMES_WITHIN_S)


def _declare_dead(storm: Storm, whom: Plain) -> bool:
    """As whoever believes a confirmation of its death. False while the store does not take it."""
    return storm.arena.books.change("Owner", whom, {"$set": {"expired": True, "why": "the test says so"}})


def _a_leased_step(storm: Storm) -> Plain:
    deadline = time.monotonic() + COMES_WITHIN_S
    while time.monotonic() < deadline:
        step = storm.arena.books.one("Step", {"status": "leased"})
        if step is not None:
            return step
        time.sleep(0.01)
    raise LostError("no step was leased")


async def _take_over(arena: Arena) -> Lineage:
    """What another trainer does first; this one never gets further."""
    database = run_database.open_database(run_database.configuration(arena.dir), arena.state_dir)
    try:
        every = [load(Lineage, found) for found in await database.find("Lineage", {})]
        newest = valid_checkpoints(every, await checkpoints.newest_first(database))[0]
        return await lineages.begin(database, "rival-0.1", parent_checkpoint=newest.id, after_step=newest.step)
    finally:
        await database.close()
