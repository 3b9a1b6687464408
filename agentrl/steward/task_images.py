"""Stores the images that new tasks name, and replaces their names by hashes.

Samplers may be on hosts that have neither the files nor a network, so a queued task must need only the database.

Invariant: an image that cannot be loaded does not block the queue: the task says why, and its records end for that
reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from agentrl.images import sources
from agentrl.images.processing import ImageError
from agentrl.images.sources import Limits
from agentrl.store import images
from agentrl.store.database import Database
from agentrl.store.documents import Image, Task
from agentrl.tokens import image_marks

AT_ONCE = 8


Put = Callable[[bytes], Awaitable[Image]]


async def stored(database: Database, tasks: Sequence[Task], limits: Limits) -> list[Task]:
    """The tasks with the names of stored images."""
    return await named(lambda data: images.put(database, data, of_task=True), tasks, limits)


async def named(put: Put, tasks: Sequence[Task], limits: Limits) -> list[Task]:
    """The same, with another function that stores an image."""
    tasks = [_without_files_outside(task, limits) for task in tasks]
    found = {name for task in tasks for name in image_marks.names_in(*_texts(task))}
    wanted = sorted(
        name for name in found if not image_marks.is_stored(name) and not name.startswith(image_marks.REFUSED)
    )
    if not wanted:
        return list(tasks)
    gate = asyncio.Semaphore(AT_ONCE)
    kept = await asyncio.gather(*(_kept(put, source, limits, gate) for source in wanted))
    marks = dict(zip(wanted, kept, strict=True))
    return [renamed(task, lambda name: marks.get(name) or image_marks.mark(name)) for task in tasks]


def _without_files_outside(task: Task, limits: Limits) -> Task:
    if task.environment not in limits.within:
        return task

    def by(name: str) -> str:
        if image_marks.is_stored(name) or not limits.outside(task.environment, name):
            return image_marks.mark(name)
        return image_marks.refused(f"The image {Path(name).name} is not in the directory of its environment.")

    return renamed(task, by)


async def _kept(put: Put, source: str, limits: Limits, gate: asyncio.Semaphore) -> str:
    async with gate:
        try:
            data = await sources.bytes_of(source, limits)
        except ImageError as wrong:
            return image_marks.refused(wrong.message)
        return image_marks.mark((await put(data)).id)


def renamed(task: Task, by: image_marks.Replacement) -> Task:
    earlier = [msgspec.structs.replace(one, content=image_marks.replaced(one.content, by)) for one in task.earlier]
    return msgspec.structs.replace(task, query=image_marks.replaced(task.query, by), earlier=earlier)


def _texts(task: Task) -> Iterable[str]:
    return [task.query, *(one.content for one in task.earlier)]
