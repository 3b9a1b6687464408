"""Finds the group that ended former trainers, by trying suspected groups alone.

Invariants:
- the store is read once, at the start of a trainer, because only former trainers can have died;
- while a group is suspected, no step mixes suspected and other groups;
- records past the bound are not suspected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.policies import poison_bisection
from agentrl.policies.batch_cut import Decision, ReadyGroup, cut
from agentrl.policies.freshness import Freshness
from agentrl.policies.poison_bisection import Death
from agentrl.policies.status_tables import Actor, TaskStatus
from agentrl.store import steps, tasks
from agentrl.store.database import Database
from agentrl.store.steps import Ready

log = logging.getLogger("trainer")
POISON = "poison"
"""The reasons of such dead tasks begin with it."""


@dataclass(slots=True)
class Suspicion:
    deaths: Sequence[steps.Died] = ()
    trained: dict[str, float] = field(default_factory=dict)

    def cleared(self, tasks: Sequence[str]) -> None:
        """Clears groups that this trainer has trained and survived."""
        self.trained |= dict.fromkeys(tasks, float("inf"))

    def decide(self, ready: Mapping[str, Ready], groups: Sequence[ReadyGroup], freshness: Freshness) -> Decision | None:
        """None if no group is suspected."""
        if len(self.deaths) < poison_bisection.ACCUSED_FROM:
            return None
        left = cut(groups, freshness)
        fresh = {group.task: group for group in left.fresh}
        weights = {name: _weight(ready[name]) for name in fresh}
        verdict = poison_bisection.judge(weights, [_among(fresh, ready, died) for died in self.deaths], self.trained)
        if verdict.poison:
            why = f"{POISON}: trainers died with it, the last one with it alone"
            return Decision("bury", why, stale_groups=left.stale_groups, poison=verdict.poison)
        if not verdict.trial:
            return None
        tried, suspected = len(verdict.trial), len(verdict.suspects)
        return Decision(
            "step",
            f"{suspected} groups are suspected of ending the trainer: {tried} of them are tried alone",
            groups=tuple(fresh[name] for name in verdict.trial),
            stale_records=tuple(record for name in verdict.trial for record in left.stale_records[name]),
            stale_groups=left.stale_groups,
        )


async def recall(database: Database) -> Suspicion:
    """The deaths of former trainers, without those that a dead task explains."""
    deaths = await steps.deaths(database)
    names = sorted({task for died in deaths for task in died.tasks})
    found = {"_id": {"$in": names}, "status": TaskStatus.DEAD, "reason": {"$regex": f"^{POISON}"}}
    explained = {task["_id"] for task in await database.find("Task", found, projection=["_id"])} if names else set()
    left = [died for died in deaths if not explained & died.tasks]
    return Suspicion(left, await steps.last_trained(database, names) if left else {})


async def bury(database: Database, names: Sequence[str], reason: str) -> None:
    """Marks the groups as dead; the run continues."""
    for name in names:
        log.error("%s is dead (%s)", name, reason)
        await tasks.kill(database, await tasks.get(database, name), Actor.TRAINER, reason)


def _among(fresh: Iterable[str], ready: Mapping[str, Ready], died: steps.Died) -> Death:
    there = frozenset(name for name in fresh if _was_in(died, ready[name]))
    return Death(died.order, there, alone=len(died.tasks) == 1)


def _was_in(died: steps.Died, one: Ready) -> bool:
    """Whether the death happened with records of the round that is ready now."""
    return any(record.id in died.records for record in one.records)


def _weight(one: Ready) -> int:
    """The tokens of the longest record, which decides how much memory the group needs."""
    return max((sum(span.length for span in record.spans) for record in one.records), default=0)
