"""The steward: repeats all its acts in rounds.

Invariants: a round may be interrupted anywhere, and any steward may repeat it; a steward renews its own lease only
after it bridged the gap before; urgent work (attempts, admission) is done in every round, the rest once in a while; no
round waits for the images of new tasks, which may come slowly or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.policies.admission_capacity import Counts
from agentrl.protocol.messages import Wait
from agentrl.steward import (
    admission,
    batch_waits,
    curriculum,
    dead_owners,
    epochs,
    group_upkeep,
    retention,
)
from agentrl.steward.admission import Admitted
from agentrl.steward.epochs import Source
from agentrl.steward.reward_watch import RewardWatch
from agentrl.steward.settings import StewardSettings
from agentrl.store import forks, owners, publications, tasks
from agentrl.store.database import Database

log = logging.getLogger("steward")

HOUSEKEEPING_EVERY_S = 1.0
IMAGES_EVERY_S = 600.0
QUEUED_WITHIN_S = 2.0
"""How long a round waits for new tasks. They go on coming beside the rounds after it."""
RETENTION_EVERY_S = 5.0
PAUSED = "paused"


@dataclass(slots=True)
class Done:
    """What one round did."""

    admitted: Admitted = field(default_factory=lambda: Admitted(0, 0, Counts()))
    evaluations: int = 0
    redrawn: int = 0
    queued: int = 0
    queueing: bool = False
    """The images of new tasks are still being stored."""
    repaired: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    expired: list[str] = field(default_factory=list)
    freed: int = 0
    pruned: int = 0

    @property
    def anything(self) -> bool:
        return bool(
            self.admitted.groups
            or self.evaluations
            or self.redrawn
            or self.queued
            or self.repaired
            or self.expired
            or self.freed
            or self.pruned
            or self.closed.total() - self.closed["open"]
        )

    def sentence(self) -> str:
        room = f"room for {max(0, self.admitted.capacity)}"
        why = "; ".join(dict.fromkeys(filter(None, (self.admitted.why_not, *self.admitted.held.values()))))
        images = "; stores the images of new tasks" if self.queueing else ""
        return f"{self.admitted.counts.sentence()}, {room}{f'; {why}' if why else ''}{images}"


class Steward:
    def __init__(
        self,
        database: Database,
        settings: StewardSettings,
        sources: Mapping[str, Source],
        *,
        incarnation: str,
        unit: str,
        run_dir: Path,
        run: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.paused = False
        """True while nothing is admitted; everything else goes on."""
        self._database = database
        self._sources = sources
        self._clock = clock
        self._lease = owners.Lease(database, incarnation, unit=unit, role=dead_owners.ROLE, run=run, clock=clock)
        self._run = run
        self._admitted = Admitted(0, 0, Counts())
        self._held: Mapping[str, str] = admission.NONE_HELD
        """The last result of `admission.held_environments`."""
        self._dead: set[str] = set()
        """Incarnations whose end was reported and not handled yet."""
        self._renewed_at = float("-inf")
        self._kept_house_at = float("-inf")
        self._run_dir = run_dir
        self._looked_at_disks_at = float("-inf")
        self._images_looked_at = float("-inf")
        self._queueing: asyncio.Task[int] | None = None
        """Brings new tasks. One at a time, because two would bring the same ones."""
        self._reward_watch = RewardWatch(database)
        self.stage = 0
        """The stage of the curriculum."""
        self.brake = ""
        """Why nothing is admitted: a disk is nearly full."""

    async def start(self) -> None:
        """The first act. Raises ConfigError if a dataset changed while its epoch is under way."""
        await epochs.refuse_changed(self._database, self._sources)
        await dead_owners.bridge_gap(self._database)
        await self._lease.open()
        self._renewed_at = self._clock()

    async def stop(self) -> None:
        if self._queueing is not None:
            # What it has not finished, the next steward begins again.
            self._queueing.cancel()
            await asyncio.wait([self._queueing])
        await self._lease.close()

    async def round(self) -> Done:
        """Do everything once."""
        done = Done()
        if self._dead or self._clock() - self._kept_house_at >= HOUSEKEEPING_EVERY_S:
            await self._keep_house(done)
            self._held = await admission.held_environments(self._database, self.settings)
            self._kept_house_at = self._clock()
        done.redrawn = await group_upkeep.open_next_attempts(self._database)
        hold = self.brake or (PAUSED if self.paused else "")
        settings = self.settings.changed(hold=hold or self.settings.hold, stage=self.stage)
        done.admitted = self._admitted = await admission.admit(self._database, settings, self._held)
        self._held = done.admitted.held
        if not hold:
            done.evaluations = await admission.admit_evaluations(self._database, settings)
        return done

    async def rejected_version(self) -> int:
        """The newest version if no engine took it, else 0."""
        return await publications.rejected_version(self._database)

    @property
    def owner(self) -> str:
        """The id of the Owner document of this steward."""
        return self._lease.incarnation

    def follow(self, settings: StewardSettings) -> None:
        """Use these settings from the next round on."""
        self.settings = settings

    @property
    def counts(self) -> Counts:
        """The counts of the last round."""
        return self._admitted.counts

    @property
    def held(self) -> Mapping[str, str]:
        """Environments for which nothing is admitted now, and why."""
        return self._admitted.held

    async def watch_reward(self) -> dict[str, float]:
        """Metrics by name: signs that the reward is exploited."""
        return await self._reward_watch.look(self.settings)

    async def waits(self) -> list[Wait]:
        """What a batch and an evaluation wait for, and why."""
        return await batch_waits.look(self._database, self.settings, self._admitted)

    def died(self, incarnation: str) -> None:
        """Note that the death of an incarnation is confirmed: the next round does not wait for the end of its lease."""
        self._dead.add(incarnation)

    async def _look_at_disks(self, done: Done) -> None:
        before = self.brake
        self.brake = await retention.brake_reason(self._database, self.settings, self._run_dir, braked=bool(before))
        if bool(before) != bool(self.brake):
            log.warning("%s", self.brake or "there is room on the disks again: admission goes on")
        done.pruned = await retention.prune(self._database, self.settings)
        if self._clock() - self._images_looked_at >= IMAGES_EVERY_S:
            await retention.remove_images(self._database, self.settings)
            self._images_looked_at = self._clock()

    async def _declare_dead(self) -> list[str]:
        declared = []
        for incarnation in sorted(self._dead):
            if await owners.expire(self._database, incarnation, "its death was confirmed", run=self._run):
                declared.append(incarnation)
            self._dead.discard(incarnation)  # not before the store took it
        return declared

    async def _queue(self, done: Done) -> None:
        if self._queueing is None:
            self._queueing = asyncio.create_task(self._bring_tasks(), name="queue tasks")
        await asyncio.wait([self._queueing], timeout=QUEUED_WITHIN_S)
        done.queueing = not self._queueing.done()
        if not done.queueing:
            ended, self._queueing = self._queueing, None
            done.queued = ended.result()

    async def _bring_tasks(self) -> int:
        new = await epochs.refill(self._database, self.settings, self._sources)
        return new + await group_upkeep.queue(self._database, self.settings, self._sources)

    async def _keep_house(self, done: Done) -> None:
        await dead_owners.bridge_gap(self._database)
        if self._clock() - self._renewed_at >= owners.RENEW_EVERY_S:
            await self._lease.renew()
            self._renewed_at = self._clock()
        done.expired = await self._declare_dead()
        if self._clock() - self._looked_at_disks_at >= RETENTION_EVERY_S:
            await self._look_at_disks(done)
            self._looked_at_disks_at = self._clock()
        expired = await dead_owners.expire(self._database)
        done.expired += expired.owners
        done.freed += expired.freed
        done.repaired = await tasks.repair(self._database) + await forks.finish_repairs(self._database)
        await forks.end_probes(self._database)
        done.closed = await group_upkeep.close(self._database, self.settings)
        if self.settings.max_trained_count > 1:
            await group_upkeep.retrain(self._database, self.settings, await admission.reported_plan(self._database))
        self.stage = await curriculum.stage(self._database, self.settings.stages)
        await self._queue(done)
        for version in await dead_owners.tidy(self._database):
            log.warning("version %d is rejected: no engine takes it", version)
