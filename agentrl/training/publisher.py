"""Writes and announces one version at a time, beside the steps that follow it.

Invariants:
- training waits only for a snapshot, and for the previous version if that is still being written;
- a version is announced when all of its files exist, by the lineage that took its number;
- if the store is away or the disk is full, the work is tried again from the same snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.engines.canary import Canary
from agentrl.engines.manifest import Base, Manifest
from agentrl.http import run_hosts
from agentrl.store import lineages, publications, steps
from agentrl.store.database import Database
from agentrl.training import disk_retention, weight_files
from agentrl.training.learner import Learner
from agentrl.training.published_base import publish_base
from agentrl.training.weight_files import Former, Prepared

Until = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Repeats an act while the store is away or the disk is full."""


class Publisher:
    def __init__(
        self,
        database: Database,
        run_dir: Path,
        *,
        config: RunConfig,
        until_done: Until,
        on_announced: Callable[[int], None],
        keep: Callable[[], int],
    ) -> None:
        """`keep`: how many versions stay on the disk."""
        self._database = database
        self._run_dir = run_dir
        self._shard_bytes = config.training.publication.shard
        self._with_deltas = _wants_deltas(config)
        self._former: Former | None = None
        self._base: Base | None = None
        self._until_done = until_done
        self._on_announced = on_announced
        self._keep = keep
        self._task: asyncio.Task[None] | None = None
        self._written: Manifest | None = None
        self.canary: Canary | None = None
        """The canary of the newest written version."""

    def begin(self, prepared: Prepared, learner: Learner, lineage: str) -> None:
        """Begins a version. The version before it must be settled."""
        assert self._task is None, "two versions would be written at the same time"
        self._written = None

        async def publish() -> None:
            await self._until_done(lambda: self._publish(prepared, learner, lineage))

        self._task = asyncio.create_task(publish(), name=f"publish version {prepared.version}")

    def check(self) -> None:
        """Raises the error that ended the writing of a version, if it ended."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def settle(self) -> None:
        """Returns when the last version is announced."""
        if self._task is not None:
            # A caller that stops waiting must not cancel the work.
            await asyncio.wait([self._task])
            self.check()

    async def close(self) -> None:
        """Ends the version under way. Its unfinished files do not have the name of a version."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _publish(self, prepared: Prepared, learner: Learner, lineage: str) -> None:
        if prepared.apart and self._base is None:
            self._base = await asyncio.to_thread(publish_base, self._run_dir, learner.base)
        if self._written is None:
            self._written = await asyncio.to_thread(
                weight_files.write_weights,
                self._run_dir,
                prepared,
                learner,
                shard_bytes=self._shard_bytes,
                former=self._former,
                base=self._base if prepared.apart else None,
            )
            self.canary = self._written.canary
        version, document = prepared.version, weight_files.as_document(self._written)
        # A trainer that was replaced and does not know it must not publish.
        is_open = await lineages.is_open(self._database, lineage)
        if not is_open or not await publications.announce(self._database, version, lineage, document):
            raise steps.closed(lineage)
        if self._with_deltas:
            self._former = Former(version, self._written)
        self._on_announced(version)
        await disk_retention.tidy_weights(self._database, self._run_dir, version, keep=self._keep())


def _wants_deltas(config: RunConfig) -> bool:
    """Whether deltas are useful. Hosts that share the run's directory have the whole files."""
    wanted = config.training.publication.delta
    return wanted == "always" or (wanted == "auto" and run_hosts.way() is not None)
