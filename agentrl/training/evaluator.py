"""The trainer's part of evaluations: requests them, waits for them and reports their results.

Invariants:
- an evaluation pins one version and never delays a step;
- an evaluation that is incomplete at its deadline is reported as n of m;
- a trainer takes over the requests of the trainer before it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

from agentrl.config.run import RunConfig
from agentrl.store import datasets, evaluations
from agentrl.store.database import Database
from agentrl.telemetry.learning_metrics import EVALUATION, EVALUATION_MARGIN
from agentrl.unit import Unit

log = logging.getLogger("trainer")
WITHIN_S = 900.0
LOOK_EVERY_S = 0.1
LATE_AFTER_S = 600.0
"""A longer wait counts as late; it lasts until the deadline of the evaluation."""

OnResults = Callable[[int, dict[str, float]], None]
"""Takes the version and its numbers."""


def over_all(numbers: Mapping[str, float]) -> dict[str, float]:
    """The mean of the environments' means, and its margin if each environment has one."""
    means = [value for name, value in numbers.items() if name.endswith("/mean")]
    margins = [value for name, value in numbers.items() if name.endswith("/margin")]
    if not means:
        return {}
    found = {EVALUATION.name: sum(means) / len(means)}
    if len(margins) == len(means):
        # The environments have different tasks, so their errors are independent.
        found[EVALUATION_MARGIN.name] = math.hypot(*margins) / len(means)
    return found


def has_held_out_tasks(config: RunConfig) -> bool:
    return any(
        environment.evaluation
        or datasets.split_of(datasets.read_without_images(environment.dataset), "eval", default="train")
        for environment in config.environments.values()
    )


class Evaluator:
    def __init__(self, database: Database, on_results: OnResults) -> None:
        self._database = database
        self._on_results = on_results
        self._requested: dict[int, float] = {}
        """The time of the request, for each version that is still waited for."""

    @property
    def waits_for(self) -> tuple[int, ...]:
        return tuple(sorted(self._requested))

    async def adopt(self) -> None:
        """Takes over the requests of former trainers."""
        open_ones = {"evaluation": {"$in": ["wanted", "queued"]}}
        for document in await self._database.find("Publication", open_ones, projection=["_id"]):
            self._requested.setdefault(int(document["_id"]), time.monotonic())

    async def want(self, version: int) -> None:
        if await evaluations.want(self._database, version):
            self._requested.setdefault(version, time.monotonic())

    async def follow(self) -> None:
        """Reports evaluations that are complete or late."""
        for version, requested_at in list(self._requested.items()):
            late = time.monotonic() - requested_at > WITHIN_S
            if late or await evaluations.complete(self._database, version):
                numbers = await self._report(version)
                await evaluations.finish(self._database, version, over_all(numbers))
                del self._requested[version]

    async def wait_for_all(self, unit: Unit) -> None:
        """Waits until all are reported, or the unit drains."""
        with unit.wait("evaluation", on="evaluation", at_most_s=LATE_AFTER_S):
            while self._requested and not unit.draining:
                await unit.sleep_async(LOOK_EVERY_S)
                await self.follow()
                unit.tick()

    async def _report(self, version: int) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for result in await evaluations.results(self._database, version):
            counted = f"{len(result.scores)} of {result.tasks}"
            log.info("version %d of %s: mean %s over %s tasks", version, result.environment, result.mean, counted)
            numbers[f"{result.environment}/tasks"] = float(len(result.scores))
            for name, value in (("mean", result.mean), ("pass", result.passed), ("margin", result.margin)):
                if value is not None:
                    numbers[f"{result.environment}/{name}"] = value
        self._on_results(version, numbers)
        return numbers
