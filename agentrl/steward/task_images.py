"""Stores the images that new tasks name, and replaces their names by hashes.

Samplers may be on hosts that have neither the files nor a network, so a queued task must need only the database.

Invariants:
- an address that gives no image for now is asked again for a while, so an outage of some minutes costs no task;
- an image that cannot be loaded does not block the queue: the task says why, and its records end for that reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from agentrl.images import sources
from agentrl.images.processing import ImageError
from agentrl.images.sources import ImageAwayError, Limits
from agentrl.store import images
from agentrl.store.database import Database
from agentrl.store.documents import Image, Task
from agentrl.tokens import image_marks

AT_ONCE = 8
AWAY_AT_MOST_S = 600.0
"""How long an address is asked again that gives no image for now."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Between two requests. The pauses double."""

Put = Callable[[bytes], Awaitable[Image]]


async def stored(database: Database, tasks: Sequence[Task], limits: Limits, *, patience_s: float = 0.0) -> list[Task]:
    """The tasks with the names of stored images. `patience_s`: how long an address may be away."""
    return await named(lambda data: images.put(database, data, of_task=True), tasks, limits, patience_s=patience_s)


async def named(put: Put, tasks: Sequence[Task], limits: Limits, *, patience_s: float = 0.0) -> list[Task]:
    """The same, with another function that stores an image."""
    tasks = [_without_files_outside(task, limits) for task in tasks]
    found = {name for task in tasks for name in image_marks.names_in(*_texts(task))}
    wanted = sorted(
        name for name in found if not image_marks.is_stored(name) and not name.startswith(image_marks.REFUSED)
    )
    if not wanted:
        return list(tasks)
    gate = asyncio.Semaphore(AT_ONCE)
    ends_at = time.monotonic() + patience_s
    try:
        async with asyncio.TaskGroup() as group:
            under_way = {
                source: group.create_task(_mark_of(put, source, limits, gate, ends_at), name=f"image {source[:60]}")
                for source in wanted
            }
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    marks = {source: one.result() for source, one in under_way.items()}
    return [renamed(task, lambda name: marks.get(name) or image_marks.mark(name)) for task in tasks]


def _without_files_outside(task: Task, limits: Limits) -> Task:
    if task.environment not in limits.within:
        return task

    def by(name: str) -> str:
        if image_marks.is_stored(name) or not limits.outside(task.environment, name):
            return image_marks.mark(name)
        return image_marks.refused(f"The image {Path(name).name} is not in the directory of its environment.")

    return renamed(task, by)


async def _mark_of(put: Put, source: str, limits: Limits, gate: asyncio.Semaphore, ends_at: float) -> str:
    """What stands for the image in a text once it is stored, or why it is not."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            async with gate:
                return image_marks.mark((await put(await sources.bytes_of(source, limits))).id)
        except ImageAwayError as away:
            if time.monotonic() + pause_s > ends_at:
                return image_marks.refused(away.message)
        except ImageError as wrong:
            return image_marks.refused(wrong.message)
        # Others use the place in the gate meanwhile.
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def renamed(task: Task, by: image_marks.Replacement) -> Task:
    earlier = [msgspec.structs.replace(one, content=image_marks.replaced(one.content, by)) for one in task.earlier]
    return msgspec.structs.replace(task, query=image_marks.replaced(task.query, by), earlier=earlier)


def _texts(task: Task) -> Iterable[str]:
    return [task.query, *(one.content for one in task.earlier)]
