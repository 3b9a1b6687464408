"""The numbers of a Step that come from the store: of the attempts behind it, and of the Steps before it.

Invariant: none of this is worth a Step: a store that does not answer leaves the numbers out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from agentrl.config.run import RunConfig
from agentrl.policies import alarms
from agentrl.store import census
from agentrl.store.database import Database, StoreError

log = logging.getLogger("trainer")

MISMATCH_IN_FLOAT32 = 1e-3
MISMATCH_IN_BFLOAT16 = 2e-2


def mismatch_limit(config: RunConfig) -> float:
    """By how much the log-probs of engine and trainer may differ: embedded engines compute in float32 like it."""
    return MISMATCH_IN_FLOAT32 if config.engines.kind == "embedded" else MISMATCH_IN_BFLOAT16


async def with_surroundings(
    database: Database, config: RunConfig, metrics: Mapping[str, float], records: Sequence[str]
) -> dict[str, float]:
    """The metrics of a Step that is about to be committed, and all that its alarms look at."""
    told = dict(metrics)
    if "mismatch_mean" in told:
        told["mismatch_over_limit"] = told["mismatch_mean"] / mismatch_limit(config)
    try:
        told |= await census.of_trained(database, records)
        told |= await census.since(database, await census.last_commit(database))
        before = await census.metrics_of_steps(database, alarms.LOOK_BACK)
    except StoreError as away:
        log.warning("a step is told without what is around it: %s", away.message)
        return told
    return told | alarms.against(before, told)
