"""Where the units of a run find its files: in its directory, into which their host gets what it does not share."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from agentrl.config.run import RunConfig
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.publication_follower import Announced
from agentrl.files.frames import FilesError, WrongListError
from agentrl.files.unit_files import UnitFiles
from agentrl.store import run_database
from agentrl.store.publications import path_of
from agentrl.unit import Unit

PREPARED_WITHIN_S = 1800.0
"""Datasets and models may be large."""
AGAIN_S = 2.0


async def prepared(unit: Unit, role: str) -> tuple[UnitFiles, RunConfig]:
    """The configuration in force, once everything that the role reads is on this host."""
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
    return files, run_database.configuration(unit.run_dir)


class EngineFiles:
    """Weights, for one engine."""

    def __init__(self, unit: Unit, files: UnitFiles) -> None:
        self._unit = unit
        self._files = files

    async def bring(self, announced: Announced) -> None:
        """Returns when they are on this host. Raises WeightsRefusedError for a damaged manifest."""
        try:
            await self._files.bring(announced.path, announced.manifest.files)
        except WrongListError as damaged:
            raise WeightsRefusedError(damaged.message) from damaged
        except FilesError as failed:
            self._unit.problem("files", str(failed))
            raise
        self._unit.problem("files", "")

    async def keep(self, versions: Collection[int]) -> None:
        await self._files.keep(path_of(version) for version in versions)
