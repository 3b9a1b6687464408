"""Connects a sampler with its unit: the sampler gets the unit's orders, and the unit gets status and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

from agentrl.rollout.sampler import FINISH_WITHIN_S, Sampler
from agentrl.telemetry.data_plane_metrics import BLOCKED, BUSY, IN_MODEL, IN_TOOLS, LEFT_BEHIND, RUNNING, Meter
from agentrl.unit import Unit

EVERY_S = 0.5


class WaitMeter:
    """Reports what episodes wait for, and adds up how long they wait for engines and toolboxes."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._meters = {"toolbox": Meter(time.monotonic()), "engine": Meter(time.monotonic())}
        self._waiting = dict.fromkeys(self._meters, 0)

    @contextlib.contextmanager
    def wait(self, what: str, on: str, at_most_s: float) -> Iterator[None]:
        """`on` is a unit or a group."""
        group = on.rpartition("-")[0] or on
        with self.unit.wait(what, on=on, at_most_s=at_most_s):
            self._add(group, 1)
            try:
                yield
            finally:
                self._add(group, -1)

    def read(self) -> dict[str, float]:
        now = time.monotonic()
        seconds = {group: meter.read(now)[BUSY.name] for group, meter in self._meters.items()}
        return {IN_TOOLS.name: seconds["toolbox"], IN_MODEL.name: seconds["engine"]}

    def _add(self, group: str, count: int) -> None:
        if group in self._meters:
            self._waiting[group] += count
            self._meters[group].set(self._waiting[group], self._waiting[group], time.monotonic())


@contextlib.asynccontextmanager
async def reporting(unit: Unit, sampler: Sampler, waits: WaitMeter) -> AsyncIterator[None]:
    task = asyncio.create_task(_report(unit, sampler, waits), name="report")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _report(unit: Unit, sampler: Sampler, waits: WaitMeter) -> None:
    ended = 0
    meter = Meter(time.monotonic())
    while True:
        sampler.paused = unit.paused
        if unit.draining and not sampler.draining:
            unit.extend_stop(2 * FINISH_WITHIN_S)
            sampler.drain()
        elif not unit.draining and sampler.draining:
            sampler.cancel_drain()
        running = f"{sampler.running} of {sampler.concurrency} episodes"
        unit.status(f"{running}; {sampler.idle_because}" if sampler.idle_because else running)
        unit.metric(RUNNING.name, sampler.running)
        unit.metric("slots", sampler.concurrency)
        unit.metric(BLOCKED.name, sampler.faults.blocked_s)
        unit.metric(LEFT_BEHIND.name, sampler.faults.left_behind)
        unit.metric("records_per_s", (sampler.ended - ended) / EVERY_S)
        ended = sampler.ended
        meter.set(sampler.running, sampler.concurrency, time.monotonic())
        for name, value in (meter.read(time.monotonic()) | waits.read()).items():
            unit.metric(name, value)
        for name, value in sampler.helper_metrics().items():
            unit.metric(name, value)
        if version := sampler.version:
            unit.weights = version
        await asyncio.sleep(EVERY_S)
