"""Rollbacks: an operator chooses the checkpoint that the next lineage starts from.

Invariants:
- the choice is stored in the newest lineage, and only the next lineage reads it;
- retention keeps the chosen checkpoint from the request on;
- the newest checkpoint before a rollback is kept, so a rollback can be undone by another one;
- a preview counts what the next lineage would roll back and reinstate, by the same history.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from agentrl.errors import RefusedError, UnknownNameError
from agentrl.policies.status_tables import StepStatus
from agentrl.store import checkpoints, history
from agentrl.store.database import Database
from agentrl.store.documents import Step, load, load_if
from agentrl.store.weight_documents import Checkpoint, Lineage

BEST = "best"
CHOSEN = "chosen for a rollback"
_SHOWN = 5


class Request(NamedTuple):
    checkpoint: str
    why: str


class Consequences(NamedTuple):
    """Which Steps a rollback would roll back and reinstate."""

    undone: list[Step]
    reinstated: list[Step]

    @property
    def freed_records(self) -> int:
        return sum(len(step.records) for step in self.undone)


async def resolve(database: Database, to: str) -> Checkpoint:
    """`to`: the id of a checkpoint, a version, or `best`. If several checkpoints have the version, the earliest is
    used, because later ones contain further steps. Raises UnknownNameError or RefusedError."""
    complete = await checkpoints.newest_first(database)
    if to == BEST:
        best = await checkpoints.best(database)
        if best is None:
            raise UnknownNameError(
                "No checkpoint has an evaluation of its version.", hint="Name one: `agentrl checkpoints list`."
            )
        return best
    version = to.removeprefix("v")
    found = [one for one in complete if one.id == to or (version.isdecimal() and one.version == int(version))]
    if not found:
        known = ", ".join(f"{one.id} (version {one.version})" for one in complete[:_SHOWN])
        raise UnknownNameError(
            f"There is no complete checkpoint {to!r}, and none of such a version.",
            hint=f"There are: {known}." if known else "Nothing was saved yet.",
        )
    chosen = min(found, key=lambda one: one.step)
    if chosen.damage:
        raise RefusedError(f"The checkpoint {chosen.id} is damaged: {chosen.damage}.", hint="Choose another one.")
    return chosen


async def trained_at(database: Database, target: Checkpoint) -> float:
    """When the last step before the checkpoint was committed. The checkpoint may be saved much later, at a drain."""
    last = {"lineage": target.lineage, "step": target.step, "committed_at": {"$type": "date"}}
    step = await database.find_one("Step", last, projection=["committed_at"])
    at = step["committed_at"] if step else target.at
    return float(at.timestamp()) if at else 0.0


async def consequences(database: Database, target: Checkpoint) -> Consequences:
    """The consequences of a lineage that starts from this checkpoint."""
    lineages = await _lineages(database)
    last = history.last_steps([*lineages, _next_after(lineages, target.id)])
    documents = await database.find(
        "Step",
        {"status": {"$in": [StepStatus.COMMITTED, StepStatus.ROLLED_BACK]}},
        sort=[("step", 1)],
        projection={"metrics": 0},
    )
    every = [load(Step, document) for document in documents]
    counts = {step.id for step in every if step.step <= last.get(step.lineage, -1)}
    return Consequences(
        [step for step in every if step.status == StepStatus.COMMITTED and step.id not in counts],
        [step for step in every if step.status == StepStatus.ROLLED_BACK and step.id in counts],
    )


async def request(database: Database, target: Checkpoint, why: str, *, by: str) -> None:
    """Store the choice, once per operation `by`; a later request replaces it. Raises RefusedError if the checkpoint was
    removed meanwhile."""
    await checkpoints.keep(database, target.id, CHOSEN)
    if not await checkpoints.is_complete(database, target.id):
        raise RefusedError(
            f"Retention has removed the checkpoint {target.id} meanwhile.",
            hint="Choose another one: `agentrl checkpoints list`.",
        )
    while True:
        newest = await _newest(database)
        if newest is None:
            raise RefusedError("No trainer has begun yet, so there is nothing to roll back.")
        chosen = {"roll_back_to": target.id, "roll_back_why": why, "roll_back_by": by}
        await database.update_one("Lineage", {"_id": newest.id}, {"$set": chosen})
        # A trainer that took over before the update did not read the choice.
        after = await _newest(database)
        if after is not None and after.id == newest.id:
            return


async def was_requested(database: Database, by: str) -> bool:
    return await database.find_one("Lineage", {"roll_back_by": by}, projection=["_id"]) is not None


async def requested(database: Database) -> Request | None:
    """The choice for the lineage that begins now."""
    newest = await _newest(database)
    return Request(newest.roll_back_to, newest.roll_back_why) if newest is not None and newest.roll_back_to else None


async def not_evaluated(database: Database) -> str:
    """The checkpoint of the newest rollback, if no evaluation of a version after it was requested; empty otherwise.

    The trainer that carried it out may have died, or lost the store, before it requested one.
    """
    newest = await _newest(database)
    if newest is None or not newest.rolled_back_to:
        return ""
    judged = {"lineage": newest.id, "evaluation": {"$nin": ["", None]}}
    document = await database.find_one("Publication", judged, projection=["_id"])
    return "" if document else newest.rolled_back_to


async def to_start_from(database: Database) -> list[Checkpoint]:
    """The checkpoints that the next trainer may start from, in the order of preference. The present history follows the
    history of the chosen checkpoint, so that the run keeps its steps if no chosen checkpoint is intact."""
    lineages, complete = await _lineages(database), await checkpoints.newest_first(database)
    present = history.valid_checkpoints(lineages, complete)
    wanted = await requested(database)
    if wanted is None:
        return present
    chosen = history.valid_checkpoints([*lineages, _next_after(lineages, wanted.checkpoint)], complete)
    return chosen + [one for one in present if one not in chosen]


async def leads_to(database: Database, request: Request, start: Checkpoint) -> bool:
    """Whether this is the chosen checkpoint or one before it. Call it before the next lineage begins."""
    lineages = await _lineages(database)
    last = history.last_steps([*lineages, _next_after(lineages, request.checkpoint)])
    return start.step <= last.get(start.lineage, -1)


async def keep_newest(database: Database, request: Request) -> None:
    """Keep the newest checkpoint, so that a rollback can be undone. Call it before the next lineage begins."""
    lineages = await _lineages(database)
    found = history.valid_checkpoints(lineages, await checkpoints.newest_first(database))
    if found and found[0].id != request.checkpoint:
        await checkpoints.keep(database, found[0].id, f"before the rollback to {request.checkpoint}")


async def _newest(database: Database) -> Lineage | None:
    return load_if(Lineage, await database.find_one("Lineage", {}, sort=[("opened_at", -1), ("_id", -1)]))


async def _lineages(database: Database) -> list[Lineage]:
    found = [load(Lineage, document) for document in await database.find("Lineage", {})]
    return history.oldest_first(found)


def _next_after(lineages: list[Lineage], checkpoint: str) -> Lineage:
    """A lineage that would be opened after all existing ones."""
    newest = lineages[-1].opened_at if lineages else None
    return Lineage(id="", parent_checkpoint=checkpoint, opened_at=newest + timedelta(seconds=1) if newest else None)
