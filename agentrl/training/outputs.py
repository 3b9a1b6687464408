"""The output of a trainer: publications and checkpoints of its lineage, and the reference weights of the run.

The publisher writes and announces one version at a time, beside the steps that follow it.

Invariants:
- a version has its number before it is prepared, and an attempt to write it that failed is repeated with that number;
- a checkpoint is written only after the version that it names is announced, so that version exists;
- a full disk costs a checkpoint but no step, unless the checkpoint is the last one;
- a trainer that has lost its lineage writes nothing that its successor would read;
- training waits only for a snapshot, and for the previous version if that is still being written;
- a version is announced when all of its files exist, by the lineage that took its number;
- if the store is away or the disk is full, the work is tried again from the same snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.engines.canary import Canary, Noise
from agentrl.engines.manifest import Base, Manifest
from agentrl.errors import DiskError
from agentrl.http import run_hosts
from agentrl.policies.version_tree import VersionTree
from agentrl.store import checkpoints as stored_checkpoints
from agentrl.store import lineages, publications, steps
from agentrl.store.database import Database
from agentrl.store.weight_documents import CheckpointFile
from agentrl.training import checkpoints, disk_retention, reference_model, weight_files
from agentrl.training.canary_probes import Published
from agentrl.training.checkpoints import Progress
from agentrl.training.computation import computed
from agentrl.training.learner import Learner
from agentrl.training.published_base import publish_base
from agentrl.training.resume import CHECKPOINTS, Start
from agentrl.training.scientific_settings import Settings
from agentrl.training.trainer_knobs import Kept
from agentrl.training.trainer_state import TrainerState
from agentrl.training.weight_files import Former, Prepared
from agentrl.unit import Unit

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


log = logging.getLogger("trainer")


class Outputs:
    """The output of one trainer. Call `begin` first."""

    _learner: Learner
    _state: TrainerState
    _tree: VersionTree

    def __init__(
        self,
        unit: Unit,
        database: Database,
        config: RunConfig,
        *,
        until_done: Until,
        kept: Callable[[], Kept],
    ) -> None:
        """`until_done` repeats an act that failed because the store was away; `kept` is the present retention."""
        self._unit = unit
        self._database = database
        self._config = config
        self._run_dir = unit.run_dir
        self._kept = kept
        self._publisher = Publisher(
            database,
            unit.run_dir,
            config=config,
            until_done=until_done,
            on_announced=lambda version: setattr(unit, "weights", version),
            keep=lambda: kept().versions,
        )
        self._noise: Noise | None = None
        self._reference: dict[str, CheckpointFile] = {}
        self._saved = ""
        """The checkpoint with the newest saved weights."""
        self._lineage = ""
        self._probes: list[list[int]] = []
        self._apart = False
        """True if versions are adapters alone."""
        self.settings: Settings = {}
        """The scientific settings of the last step."""

    def begin(self, start: Start, state: TrainerState, tree: VersionTree) -> None:
        """`state` and `tree` belong to the trainer, and are updated here with what is written."""
        self._learner, self._state, self._tree = start.learner, state, tree
        self._lineage, self._probes, self._saved = start.lineage.id, start.probes, start.checkpoint
        self.settings = dict(start.settings)
        self._apart = weight_files.publishes_apart(self._config, self._learner)

    def check(self) -> None:
        """Raises the error of the publication under way, if it failed."""
        self._publisher.check()

    async def settle(self) -> None:
        """Waits until the newest version is announced."""
        await self._publisher.settle()

    async def close(self) -> None:
        await self._publisher.close()

    async def publish(self, parent: int | None) -> None:
        """Publishes the present weights. The next step begins at the new version; its files are written and announced
        meanwhile."""
        await self._publisher.settle()
        if self._noise is None and (measured := await publications.first_canary(self._database)) is not None:
            self._noise = Noise(measured.mean, measured.limit)
        now = self._state
        taken = await publications.take_number(self._database, parent=parent, lineage=self._lineage, step=now.step)
        self._unit.status(f"prepares version {taken.id}")
        dtype = weight_files.published_type(self._config)
        published = Published(self._publisher.canary, self._noise)
        prepared = await computed(
            self._unit, "publication", now.step,
            weight_files.prepare, self._learner, taken.id, self._probes, dtype, published, self._apart,
        )  # fmt: skip
        self._publisher.begin(prepared, self._learner, self._lineage)
        self._tree.add(taken.id, parent)
        now.version, now.trained, now.steps_published = taken.id, False, 0
        now.since_evaluation += 1

    async def checkpoint(self, *, last: bool = False) -> None:
        # The version that the checkpoint names must exist.
        await self._publisher.settle()
        now = self._state
        name = checkpoints.name_of(now.step, self._lineage)
        document = await stored_checkpoints.begin(
            self._database,
            step=now.step,
            lineage=self._lineage,
            version=now.version,
            path=f"{CHECKPOINTS}/{name}",
            settings=self.settings,
        )
        progress = Progress(step=now.step, version=now.version, lineage=self._lineage, settings=self.settings)
        self._unit.status(f"writes checkpoint {name}")
        target = self._run_dir / document.path
        try:
            files = await computed(
                self._unit, "checkpoint", now.step, checkpoints.write_checkpoint, target, self._learner, progress
            )
        except DiskError as full:
            if last:
                raise
            now.tried_checkpoint = now.step
            # Training continues; a crash would lose only the steps that are not saved yet.
            log.error("%s The checkpoint is retried after the next step.", full.message)
            self._unit.status(f"no checkpoint: {full.message}")
            return
        if not await stored_checkpoints.complete(self._database, document.id, files, self._reference):
            raise steps.closed(self._lineage)
        now.checkpoint, now.unsaved = now.step, 0
        self._saved = document.id
        await disk_retention.tidy_checkpoints(self._database, self._run_dir, keep=self._kept().checkpoints)

    async def keep_weights_before(self, changed: str) -> None:
        """Keeps the weights before a change of a scientific setting, because the change can spoil later ones. With a
        full disk it keeps the newest saved ones, because a later checkpoint would already contain the change."""
        if self._state.unsaved:
            await self.checkpoint()
        if self._state.unsaved:
            log.error(
                "The weights before %s are not saved; %s is the newest checkpoint before it.",
                changed,
                self._saved or "none",
            )
        if self._saved:
            await stored_checkpoints.keep(self._database, self._saved, f"before {changed}")

    async def keep_reference(self, *, new_run: bool) -> None:
        # A trainer that was replaced would overwrite the reference of its successor.
        if not await lineages.is_open(self._database, self._lineage):
            raise steps.closed(self._lineage)
        keep = reference_model.keep_reference
        self._reference = await asyncio.to_thread(keep, self._run_dir, self._learner, new_run=new_run)
