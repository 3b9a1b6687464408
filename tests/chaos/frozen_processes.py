"""Faults in which a process is declared dead while it is frozen, and then continues.

Invariants: the coordinator is frozen too, so only the test thaws or ends the process; records and steps that others
took over stay with them, whatever the process still writes; the process notices that it lost its lease, and ends.
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
from agentrl.store.documents import load
from agentrl.store.history import valid_checkpoints
from agentrl.store.weight_documents import Lineage
from tests.chaos.fault_injection import ChaosError, FaultInjector
from tests.chaos.processes import Role, frozen
from tests.chaos.run_under_test import RunUnderTest
from tests.chaos.store_reader import Plain

ENDS_WITHIN_S = 120.0
"""A lease is renewed every ten seconds, and a trainer may be in the middle of a step on a busy machine."""
COMES_WITHIN_S = 150.0
RIVAL = "import sys; sys.argv = sys.argv[1:]; from daemons.steward import main, run_unit; run_unit(main)"
"""A steward under the unit name of its last argument: a second incarnation of the same unit would end the first."""
HELD = ["running", "finished", "unscored"]


def sampler(injector: FaultInjector) -> None:
    """Another sampler continues its Records while it is frozen."""
    store = injector.run.store
    injector.wait_for_recovery()
    with _coordinator_frozen(injector):
        victim = injector.pick(Role.SAMPLER)
        mine = {"owner": victim.incarnation, "status": "running"}
        injector.until(lambda: store.count("Record", mine) > 0, "a record under way", within_s=COMES_WITHIN_S)
        with frozen(victim):
            _declare_dead(injector, {"_id": victim.incarnation})
            held = {"owner": victim.incarnation, "status": {"$in": HELD}}
            names = [record["_id"] for record in store.find("Record", held, "_id")]
            injector.until(lambda: not store.count("Record", held), "its records to be freed", within_s=COMES_WITHIN_S)
            elsewhere = {"_id": {"$in": names}, "owner": {"$nin": ["", victim.incarnation]}}
            if names:
                injector.until(
                    lambda: store.count("Record", elsewhere) > 0, "another sampler to continue", within_s=COMES_WITHIN_S
                )
            taken = {record["_id"]: record["owner"] for record in store.find("Record", elsewhere)}
            injector.log(f"{victim} is frozen; {len(taken)} of {len(names)} records continue elsewhere; it is thawed")
        injector.until(lambda: not victim.alive, f"the end of {victim}", within_s=ENDS_WITHIN_S)
    injector.expect_recovery(victim)
    back = store.find("Record", {"_id": {"$in": list(taken)}, "owner": victim.incarnation})
    if back:
        raise ChaosError(f"{victim} took back records that it no longer owned: {[record['_id'] for record in back]}")


def trainer(injector: FaultInjector) -> None:
    """Another lineage begins while it is frozen in the middle of a step."""
    store = injector.run.store
    injector.wait_for_recovery()
    with _coordinator_frozen(injector):
        victim = injector.pick(Role.TRAINER)
        step = _a_leased_step(injector)
        with frozen(victim):
            former = store.find("Lineage", {"closed": False}, "_id")
            rival = asyncio.run(_take_over(injector.run))
            versions = store.count("Publication", {"status": {"$in": ["announced", "current", "retained"]}})
            injector.log(f"{victim} is frozen with {step['_id']}; {rival.id} begins; it is thawed")
        injector.until(lambda: not victim.alive, f"the end of {victim}", within_s=ENDS_WITHIN_S)
        closed = [lineage["_id"] for lineage in former]
        later = store.find("Step", {"lineage": {"$in": closed}, "status": {"$in": ["leased", "committed"]}})
        covered = [one for one in later if one["step"] < rival.first_step and one["status"] == "committed"]
        if later != covered:
            raise ChaosError(f"{victim} wrote under a closed lineage: {[one['_id'] for one in later]}")
        now = store.count("Publication", {"status": {"$in": ["announced", "current", "retained"]}})
        if now > versions:
            raise ChaosError(f"{victim} published under a closed lineage")
    injector.expect_recovery(victim)


def two_stewards(injector: FaultInjector) -> None:
    """A second steward works beside the first for a while, and is killed."""
    store = injector.run.store
    with _second_steward(injector) as unit:
        alive = {"role": "steward", "expired": False, "unit": unit}
        injector.until(lambda: store.count("Owner", alive) > 0, "a second steward", within_s=COMES_WITHIN_S)
        injector.log(f"{unit} works too")
        goal = min(store.committed() + 2, injector.run.steps)
        injector.until(lambda: store.committed() >= goal, "two steps with two stewards", within_s=2 * COMES_WITHIN_S)
    injector.log(f"killed {unit}")


# ---- inside ----


@contextmanager
def _coordinator_frozen(injector: FaultInjector) -> Iterator[None]:
    coordinator = injector.pick(Role.COORDINATOR)
    with frozen(coordinator):
        yield


@contextmanager
def _second_steward(injector: FaultInjector) -> Iterator[str]:
    """The unit name of a new steward. Only the test supervises it, so the test also confirms its death, because its
    lease would outlive it."""
    run = injector.run
    name = f"rival-{uuid.uuid4().hex[:8]}"
    environ = {
        **os.environ,
        "AGENTRL_RUN": run.uuid(),
        "AGENTRL_RUN_DIR": str(run.dir),
        "AGENTRL_STATE_DIR": str(run.state_dir),
    }
    unit = f"{name}-0"
    with (run.file.parent / "rival-steward.log").open("ab") as log:
        rival = subprocess.Popen([sys.executable, "-c", RIVAL, name], env=environ, stdout=log, stderr=log)
    try:
        yield unit
    finally:
        rival.kill()
        rival.wait()
        injector.until(
            lambda: _declare_dead(injector, {"unit": unit}), f"the end of {unit}'s lease", within_s=COMES_WITHIN_S
        )


def _declare_dead(injector: FaultInjector, victim: Plain) -> bool:
    """Expires a lease as a confirmed death does. Returns False while the store does not answer."""
    return injector.run.store.change("Owner", victim, {"$set": {"expired": True, "why": "the test says so"}})


def _a_leased_step(injector: FaultInjector) -> Plain:
    deadline = time.monotonic() + COMES_WITHIN_S
    while time.monotonic() < deadline:
        step = injector.run.store.one("Step", {"status": "leased"})
        if step is not None:
            return step
        time.sleep(0.01)
    raise ChaosError("no step was leased")


async def _take_over(run: RunUnderTest) -> Lineage:
    """Begins a lineage as another trainer does; it does nothing more."""
    database = await run_database.open_database(run_database.configuration(run.dir), run.state_dir)
    try:
        every = [load(Lineage, found) for found in await database.find("Lineage", {})]
        newest = valid_checkpoints(every, await checkpoints.newest_first(database))[0]
        return await lineages.begin(database, "rival-0.1", parent_checkpoint=newest.id, after_step=newest.step)
    finally:
        await database.close()
