"""Compares evaluation and reward with the best of the run, and reports the comparison with the trainer's metrics.

Invariants:
- everything is read from the store, so the next trainer continues with the same best values;
- a collapse is reported with its beginning and with the version of the checkpoint to go back to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

from agentrl.policies import learning_collapse
from agentrl.policies.learning_collapse import Measurement
from agentrl.policies.status_tables import StepStatus
from agentrl.store import checkpoints, evaluations
from agentrl.store.database import Database, Plain
from agentrl.telemetry import learning_metrics as of

_RAN = {"status": {"$in": [StepStatus.COMMITTED, StepStatus.ROLLED_BACK]}}


class LearningWatch:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._evaluations: list[Measurement] = []
        self._reward_best: Measurement | None = None
        self._rewards: list[Measurement] = []
        """The measurements of the newest steps, oldest first."""

    @property
    def evaluation(self) -> dict[str, float]:
        """The newest result, for the metrics of steps."""
        if not self._evaluations:
            return {}
        newest = self._evaluations[-1]
        margin = {of.EVALUATION_MARGIN.name: newest.margin} if math.isfinite(newest.margin) else {}
        return {of.EVALUATION.name: newest.mean, **margin}

    async def recall(self) -> None:
        """Reads the measurements of the whole run."""
        self._evaluations = await evaluations.measured(self._database)
        name = f"metrics.{of.REWARD_LATELY.name}"
        fields = ["step", name, f"metrics.{of.REWARD_LATELY_MARGIN.name}"]
        ran = await self._database.find("Step", _RAN | {name: {"$type": "number"}}, projection=fields)
        self._reward_best = learning_collapse.best_of(_rewards_of(ran))
        newest = await self._database.find(
            "Step",
            {"status": StepStatus.COMMITTED},
            sort=[("step", -1)],
            projection=fields,
            limit=learning_collapse.REWARDS_KEPT,
        )
        self._rewards = _rewards_of(reversed(newest))

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        newest = _reward_of(step, metrics)
        if newest is not None:
            self._rewards = [*self._rewards, newest][-learning_collapse.REWARDS_KEPT :]
            candidates = [one for one in (self._reward_best, newest) if one is not None]
            self._reward_best = learning_collapse.best_of(candidates)

    async def metrics(self) -> dict[str, float]:
        """The metrics. Unknown values are NaN, which clears what was reported before."""
        found = dict.fromkeys((metric.name for metric in of.OF_COLLAPSE), math.nan)
        best, reward_best = learning_collapse.best_of(self._evaluations), self._reward_best
        if best is None and not self._rewards:
            return found
        collapse = learning_collapse.evaluation_collapse(self._evaluations)
        if best is not None:
            found |= {of.EVALUATION_BEST.name: best.mean, of.EVALUATION_BEST_VERSION.name: float(best.of)}
        if reward_best is not None:
            found[of.REWARD_BEST.name] = reward_best.mean
            found[of.REWARD_COLLAPSE.name] = learning_collapse.reward_collapse(reward_best, self._rewards)
            collapse = max(collapse, found[of.REWARD_COLLAPSE.name])
        found[of.COLLAPSE.name] = collapse
        if collapse > 1:
            found |= await self._collapsed()
        return found

    async def _collapsed(self) -> dict[str, float]:
        began_at = await self._began_at()
        target = await checkpoints.best(self._database)
        if target is None and began_at is not None:
            target = await checkpoints.newest_before(self._database, began_at)
        found = {of.COLLAPSE_BEGAN.name: began_at.timestamp()} if began_at is not None else {}
        return found | ({of.ROLLBACK_VERSION.name: float(target.version)} if target else {})

    async def _began_at(self) -> datetime | None:
        """When the reward was last nearer to its best than to its present value."""
        if self._reward_best is None or not self._rewards:
            return None
        middle = (self._reward_best.mean + self._rewards[-1].mean) / 2
        name = f"metrics.{of.REWARD.name}"
        good = await self._database.find_one(
            "Step", _RAN | {name: {"$gte": middle}}, sort=[("leased_at", -1)], projection=["committed_at"]
        )
        return good["committed_at"] if good else None


def _reward_of(step: int, metrics: Mapping[str, float]) -> Measurement | None:
    mean, margin = metrics.get(of.REWARD_LATELY.name), metrics.get(of.REWARD_LATELY_MARGIN.name)
    return None if mean is None or margin is None else Measurement(step, mean, margin)


def _rewards_of(steps: Iterable[Plain]) -> list[Measurement]:
    found = (_reward_of(int(step["step"]), step.get("metrics", {})) for step in steps)
    return [one for one in found if one is not None]
