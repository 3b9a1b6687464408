"""The output of a trainer: publications and checkpoints of its lineage, and the reference weights of the run.

Invariants:
- a version has its number before it is prepared, and an attempt to write it that failed is repeated with that number;
- a checkpoint is written only after the version that it names is announced, so that version exists;
- a full disk costs a checkpoint but no step, unless the checkpoint is the last one;
- a trainer that has lost its lineage writes nothing that its successor would read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agentrl.config.run import RunConfig
from agentrl.engines.canary import Noise
from agentrl.errors import DiskError
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
from agentrl.training.publisher import Publisher, Until
from agentrl.training.resume import CHECKPOINTS, Start
from agentrl.training.scientific_settings import Settings
from agentrl.training.trainer_knobs import Kept
from agentrl.training.trainer_state import TrainerState
from agentrl.unit import Unit

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
