"""Groups that nobody else closed: their last sampler died, too few are valid, or the deadline passed; and Tasks that
may train once more.

Invariant: what a sampler would close by itself comes out the same here, because both ask the same policy.
"""

from __future__ import annotations

from collections import Counter

from agentrl.policies.states import Actor, TaskStatus
from agentrl.steward.rules import Rules
from agentrl.store import groups, tasks
from agentrl.store.database import Database
from agentrl.store.updates import is_older

RETRAIN_AFTER_S = 0.0
MOST_AT_ONCE = 256


async def close(database: Database, rules: Rules) -> Counter[str]:
    """Answers what became of how many: ready, requeued, dead."""
    became: Counter[str] = Counter()
    for group in await groups.admitted(database):
        if group.may_close:
            became[await groups.close_group(database, group, rules.group_rule, Actor.STEWARD)] += 1
    return became


async def retrain(database: Database, rules: Rules) -> int:
    """Trained Tasks that have not been trained as often as they may be."""
    if rules.max_trained_count < 2:
        return 0
    allowed = {
        "status": TaskStatus.TRAINED,
        "trained_count": {"$lt": rules.max_trained_count},
        **is_older("trained_at", RETRAIN_AFTER_S),
    }
    found = await database.find("Task", allowed, limit=MOST_AT_ONCE, projection=["_id"])
    return sum([await tasks.again(database, task["_id"], most=rules.max_trained_count) for task in found])
