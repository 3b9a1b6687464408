"""Queues the Tasks of wanted evaluations: Tasks that pin a version.

Invariant: the Tasks are inserted before the evaluation counts as queued; a repetition adds none.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.steward import epochs, task_images
from agentrl.steward.epochs import Source
from agentrl.steward.settings import StewardSettings
from agentrl.store import evaluations, tasks
from agentrl.store.database import Database


async def queue(database: Database, settings: StewardSettings, sources: Mapping[str, Source]) -> int:
    """Returns how many Tasks are new."""
    new = 0
    for version in await evaluations.wanted(database):
        for name, environment in settings.environments.items():
            rows = sources[name].held_out
            chosen = rows[: settings.evaluation_tasks] if settings.evaluation_tasks else rows
            fresh = epochs.evaluation_tasks(name, environment, chosen, version)
            complete = await task_images.stored(database, fresh, settings.images, patience_s=task_images.AWAY_AT_MOST_S)
            new += await tasks.insert(database, complete)
        await evaluations.mark_queued(database, version)
    return new
