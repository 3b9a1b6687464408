"""Groups that nobody else closed: their last sampler died, too few are valid, or the deadline passed; and Tasks that
may train once more.

Invariant: what a sampler would close by itself comes out the same here, because both ask the same policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agentrl.policies.status_tables import Actor
from agentrl.steward.rules import Rules
from agentrl.store import groups, retraining, tasks
from agentrl.store.database import Database


async def close(database: Database, rules: Rules) -> Counter[str]:
    """Answers what became of how many: ready, requeued, dead."""
    became: Counter[str] = Counter()
    for group in await groups.admitted(database):
        if group.may_close:
            became[await groups.close_group(database, group, rules.group_rule, Actor.STEWARD)] += 1
    return became


async def retrain(database: Database, rules: Rules, told: Mapping[str, Any] | None = None) -> int:
    """Trained Tasks that have not been trained as often as they may be, and are still fresh. `told`: what the trainer
    says of itself."""
    if rules.max_trained_count < 2:
        return 0
    found = await retraining.candidates(
        database,
        most=rules.max_trained_count,
        bound=lambda environment: rules.plan(told or {}, environment).bound,
        after_s=rules.retrain_after_s,
    )
    return sum([await tasks.again(database, task, most=rules.max_trained_count) for task in found])
