"""Removes details of consumed records, and stops admission when a disk is nearly full.

Invariants: details are removed only if no later lineage of the trainer can need them (the record trained before every
checkpoint that is kept, or never trains), oldest admitted first; structure, scores and sums stay, so the account still
agrees. A full disk stops only admission: work under way ends and is trained, and admission resumes by itself.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

from agentrl.policies import disk_brake
from agentrl.steward.settings import StewardSettings
from agentrl.store import images, pruning
from agentrl.store.database import Database

log = logging.getLogger("steward")
MOST_AT_ONCE = 64
"""The most Tasks of one turn."""


async def prune(database: Database, settings: StewardSettings) -> int:
    """Remove the calls, turns and tool calls of consumed Tasks that are too old, or that take too much space. Returns
    the number of Tasks."""
    too_large = 0 < settings.data_max_bytes < await _size_bytes(database)
    if not too_large and not settings.details_s:
        return 0
    names = await pruning.consumed(
        database,
        older_than_s=0.0 if too_large else settings.details_s,
        max_trained_count=settings.max_trained_count,
        limit=MOST_AT_ONCE,
    )
    if names:
        await pruning.remove_details(database, names)
        log.info("calls and turns of %d consumed tasks are removed, %s to %s", len(names), names[0], names[-1])
    return len(names)


async def _size_bytes(database: Database) -> int:
    """Without the images of tasks. They stay, because an operator may have any task sampled again, so removing details
    could not make up for them."""
    return await database.size_bytes() - await images.bytes_of_tasks(database)


async def remove_images(database: Database, settings: StewardSettings) -> int:
    """Remove the bytes of images that only removed details named. Returns the number of images."""
    if not settings.details_s and not settings.data_max_bytes:
        return 0
    if removed := await images.remove_unused(database):
        log.info("the bytes of %d images are removed, which no record with details names", removed)
    return removed


async def brake_reason(database: Database, settings: StewardSettings, run_dir: Path, *, braked: bool) -> str:
    """Why nothing may be admitted for now; empty if there is room."""
    free = {"the run's directory": (await asyncio.to_thread(shutil.disk_usage, run_dir)).free}
    free_bytes = await database.disk_free_bytes()
    if free_bytes is not None:
        free["MongoDB"] = free_bytes
    return disk_brake.reason(free, settings.disk_reserve_bytes, braked=braked)
