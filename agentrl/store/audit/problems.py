"""The result of a check, and functions that several checks use.

Invariant: a problem names the first documents that show it, and how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.formatting.amounts import counted
from agentrl.policies.status_tables import TaskStatus
from agentrl.store.database import Database, Plain

SHOWN = 5
NAMED = 10_000
SEATED = (TaskStatus.ADMITTED, TaskStatus.READY, TaskStatus.LEASED, TaskStatus.TRAINED, TaskStatus.FILTERED)
"""Tasks whose present round has all its seats."""


class Problem(msgspec.Struct, frozen=True):
    what: str
    """A noun phrase in the plural; it has no verb that would differ in the singular."""
    count: int
    examples: tuple[str, ...] = ()
    """The first SHOWN of them; a check itself names NAMED."""

    def still(self, before: Problem) -> Problem | None:
        """The part of the problem that an earlier look found in the same documents."""
        if self.count > len(self.examples) or before.count > len(before.examples):
            # Not all documents are named, so they may be the same.
            return self
        known = set(before.examples)
        same = tuple(name for name in self.examples if name in known)
        return Problem(self.what, len(same), same) if same else None

    def cut(self) -> Problem:
        return Problem(self.what, self.count, self.examples[:SHOWN])

    def sentence(self) -> str:
        shown = ", ".join(self.examples)
        return f"{counted(self.count, self.what)}: {shown}{' …' if self.count > len(self.examples) else ''}"


Check = Callable[[Database], Coroutine[Any, Any, Problem | None]]
Checks = Callable[[Database], Coroutine[Any, Any, list[Problem]]]
"""Several checks that share what they read."""


def each(*checks: Check) -> Checks:
    async def results(database: Database) -> list[Problem]:
        return [problem for check in checks if (problem := await check(database)) is not None]

    return results


def each_if(suspicion: Callable[[Database], Coroutine[Any, Any, bool]], *checks: Check) -> Checks:
    """`suspicion` is one pass that is cheaper than the checks. It returns whether any of them can find a problem."""
    all_of_them = each(*checks)

    async def results(database: Database) -> list[Problem]:
        return await all_of_them(database) if await suspicion(database) else []

    return results


async def found(database: Database, collection: str, stages: Sequence[Plain], what: str) -> Problem | None:
    """A problem if the stages leave any document."""
    rest = {"count": {"$sum": 1}, "examples": {"$minN": {"input": "$_id", "n": NAMED}}}
    left = await database.aggregate(collection, [*stages, {"$group": {"_id": None, **rest}}])
    if not left:
        return None
    return Problem(what, int(left[0]["count"]), tuple(str(name) for name in left[0]["examples"]))


def listed(names: Sequence[str], what: str) -> Problem | None:
    return Problem(what, len(names), tuple(sorted(names)[:NAMED])) if names else None


def repeated(filter: Mapping[str, Any], key: Any) -> list[Plain]:
    """Stages that leave the keys which more than one document has."""
    return [{"$match": filter}, {"$group": {"_id": key, "times": {"$sum": 1}}}, {"$match": {"times": {"$gt": 1}}}]


def beside(collection: str, fields: Mapping[str, Any], *, filter: Mapping[str, Any] | None = None) -> Plain:
    """A stage that adds the documents of another collection as rows of their own, which a `$group` by `id` then brings
    together. A `$lookup` of each document would take ten times as long."""
    return {
        "$unionWith": {
            "coll": collection,
            "pipeline": [{"$match": dict(filter or {})}, {"$project": {"_id": 0, "id": "$_id", **fields}}],
        }
    }


def the_one(field: str) -> Plain:
    """In a `$group`: the value of the only row that has this field."""
    return {"$max": f"${field}"}
