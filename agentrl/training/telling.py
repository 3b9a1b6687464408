"""The numbers of a Step that come from the store: of the attempts behind it, and of the Steps before it.

Invariant: none of this is worth a Step: a store that does not answer leaves the numbers out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from agentrl.config.run import RunConfig
from agentrl.engines.manifest import K3_OVER_SQUARE, MEAN_LIMIT, MEAN_LIMIT_HALF, P99_OVER_MEAN
from agentrl.policies import step_alarms
from agentrl.store import attempt_statistics
from agentrl.store.database import Database, StoreError
from agentrl.telemetry.learning import MISMATCH_K3_OVER_LIMIT, MISMATCH_OVER_LIMIT, MISMATCH_P99_OVER_LIMIT

log = logging.getLogger("trainer")
_OVER_LIMIT = {"mean": MISMATCH_OVER_LIMIT, "p99": MISMATCH_P99_OVER_LIMIT, "k3": MISMATCH_K3_OVER_LIMIT}


def mismatch_limit(config: RunConfig) -> float:
    """By how much the log-probs of engine and trainer may differ: embedded engines compute in float32 like it."""
    return MEAN_LIMIT if config.engines.kind == "embedded" else MEAN_LIMIT_HALF


async def with_surroundings(
    database: Database, config: RunConfig, metrics: Mapping[str, float], records: Sequence[str]
) -> dict[str, float]:
    """The metrics of a Step that is about to be committed, and all that its alarms look at."""
    told = dict(metrics)
    limit = mismatch_limit(config)
    for name, most in (("mean", limit), ("p99", P99_OVER_MEAN * limit), ("k3", K3_OVER_SQUARE * limit**2)):
        if (value := told.get(f"mismatch_{name}")) is not None:
            told[_OVER_LIMIT[name].name] = value / most
    try:
        told |= await attempt_statistics.of_trained(database, records)
        told |= await attempt_statistics.since(database, await attempt_statistics.last_commit(database))
        before = await attempt_statistics.metrics_of_steps(database, step_alarms.LOOK_BACK)
    except StoreError as away:
        log.warning("a step is told without what is around it: %s", away.message)
        return told
    return told | step_alarms.against(before, told)
