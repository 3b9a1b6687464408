"""Finds the files of a run for its units: in the run's directory, into which the host fetches files that it does not
share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.publication_follower import Announced
from agentrl.files.frames import FilesError, WrongListError
from agentrl.files.unit_files import UnitFiles
from agentrl.store import checkpoints, run_database
from agentrl.store.database import Database, StoreError
from agentrl.store.publications import path_of
from agentrl.unit import Unit
from daemons import traces

PREPARED_WITHIN_S = 1800.0
"""Datasets and models may be large."""
AGAIN_S = 2.0
COPY_EVERY_S = 3.0

log = logging.getLogger("files")


async def prepared(unit: Unit, role: str) -> tuple[UnitFiles, RunConfig]:
    """Returns the configuration in force when all files that the role reads are on this host."""
    files = UnitFiles.of_this_unit(unit.status)
    with unit.phase("getting the files of the run", at_most_s=PREPARED_WITHIN_S):
        while True:
            try:
                await files.prepare(role)
                break
            except FilesError as failed:
                unit.status(f"has no files of the run yet: {failed}")
                await asyncio.sleep(AGAIN_S)
    unit.status("")
    config = run_database.configuration(unit.run_dir)
    traces.export(config, unit)
    return files, config


async def keep_newest_checkpoint(database: Database, files: UnitFiles) -> None:
    """Keeps a copy of the newest checkpoint on this host, so that it survives the loss of the trainer's host. Runs
    until cancelled."""
    problem = ""
    while True:
        try:
            if (newest := await checkpoints.newest(database)) is not None:
                await files.bring(newest.path, checkpoints.contents_of(newest.files))
                if newest.reference:
                    await files.bring(checkpoints.REFERENCE, checkpoints.contents_of(newest.reference))
                await files.keep([newest.path, checkpoints.REFERENCE])
            problem = ""
        except (StoreError, FilesError, WrongListError) as failed:
            if str(failed) != problem:
                problem = str(failed)
                log.warning("the newest checkpoint is not copied: %s", problem)
        await asyncio.sleep(COPY_EVERY_S)


class EngineFiles:
    """Weights, for one engine."""

    def __init__(self, unit: Unit, files: UnitFiles) -> None:
        self._unit = unit
        self._files = files
        self._base: list[str] = []
        """The directory of the base that versions of adapters change."""

    async def bring(self, announced: Announced) -> None:
        """Returns when the weights are on this host. Raises WeightsRefusedError for a damaged manifest."""
        try:
            if (base := announced.manifest.base) is not None:
                self._base = [str(base.beside(Path(announced.path)))]
                await self._files.bring(self._base[0], base.files)
            await self._files.bring(announced.path, announced.manifest.files, announced.manifest.deltas)
        except WrongListError as damaged:
            raise WeightsRefusedError(damaged.message) from damaged
        except FilesError as failed:
            self._unit.problem("files", str(failed))
            raise
        self._unit.problem("files", "")

    async def keep(self, versions: Collection[int]) -> None:
        await self._files.keep([*map(path_of, versions), *self._base])
