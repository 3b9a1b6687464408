"""Evaluations as the trainer sees them: asked for, waited for, told.

Invariants: an evaluation pins one version and never holds back a Step; one that is not complete by its deadline is
told as n of m; a trainer takes over what the one before it had asked for.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.store import datasets, evaluations
from agentrl.store.database import Database
from agentrl.telemetry.learning import EVALUATION, EVALUATION_MARGIN
from agentrl.unit import Unit

log = logging.getLogger("trainer")
WITHIN_S = 900.0
LOOK_EVERY_S = 0.1
LATE_AFTER_S = 600.0
"""Longer than that is worth a question; it is waited for until its own deadline."""

Told = Callable[[int, dict[str, float]], None]
"""Takes the version and its numbers."""


def over_all(numbers: Mapping[str, float]) -> dict[str, float]:
    """What the environments come to together: the mean of their means, and its margin where each has one."""
    means = [value for name, value in numbers.items() if name.endswith("/mean")]
    margins = [value for name, value in numbers.items() if name.endswith("/margin")]
    if not means:
        return {}
    told = {EVALUATION.name: sum(means) / len(means)}
    if len(margins) == len(means):
        # Of a mean of means of different tasks: their errors are independent.
        told[EVALUATION_MARGIN.name] = math.hypot(*margins) / len(means)
    return told


def has_held_out_tasks(config: RunConfig) -> bool:
    return any(
        environment.evaluation or datasets.split_of(datasets.read(Path(environment.dataset)), "eval", default="train")
        for environment in config.environments.values()
    )


class Evaluator:
    def __init__(self, database: Database, told: Told) -> None:
        self._database = database
        self._told = told
        self._asked: dict[int, float] = {}
        """When each version that is still waited for was asked for."""

    @property
    def waits_for(self) -> tuple[int, ...]:
        return tuple(sorted(self._asked))

    async def adopt(self) -> None:
        """What a former trainer asked for."""
        open_ones = {"evaluation": {"$in": ["wanted", "queued"]}}
        for document in await self._database.find("Publication", open_ones, projection=["_id"]):
            self._asked.setdefault(int(document["_id"]), time.monotonic())

    async def want(self, version: int) -> None:
        if await evaluations.want(self._database, version):
            self._asked.setdefault(version, time.monotonic())

    async def follow(self) -> None:
        """Tell those that came to their end."""
        for version, asked_at in list(self._asked.items()):
            late = time.monotonic() - asked_at > WITHIN_S
            if late or await evaluations.complete(self._database, version):
                numbers = await self._tell(version)
                await evaluations.finish(self._database, version, over_all(numbers))
                del self._asked[version]

    async def see_through(self, unit: Unit) -> None:
        """Until all are told, or the unit drains."""
        with unit.wait("evaluation", on="evaluation", at_most_s=LATE_AFTER_S):
            while self._asked and not unit.draining:
                await unit.sleep_async(LOOK_EVERY_S)
                await self.follow()
                unit.tick()

    async def _tell(self, version: int) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for result in await evaluations.results(self._database, version):
            counted = f"{len(result.scores)} of {result.tasks}"
            log.info("version %d of %s: mean %s over %s tasks", version, result.environment, result.mean, counted)
            numbers[f"{result.environment}/tasks"] = float(len(result.scores))
            for name, value in (("mean", result.mean), ("pass", result.passed), ("margin", result.margin)):
                if value is not None:
                    numbers[f"{result.environment}/{name}"] = value
        self._told(version, numbers)
        return numbers
