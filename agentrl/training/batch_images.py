"""The images of a step: from the store to the batch, in the size that the model sees.

Invariant: a record does not train if its image is missing, or has another number of tokens than when it was sampled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from agentrl.images import decoding
from agentrl.images.positions import image_runs
from agentrl.images.processing import ImageError, Processing
from agentrl.store import images
from agentrl.store.database import Database
from agentrl.store.documents import Image
from agentrl.tokens.image_ids import label
from agentrl.training.batch import Trajectory
from agentrl.training.batch_assembly import Assembled

log = logging.getLogger("trainer")
AT_ONCE = 8
"""Images that are decoded at the same time."""


async def with_images(database: Database, assembled: Assembled, how: Processing | None) -> Assembled:
    """The batch with the images that its tokens show. `how`: how the model is shown images; None if it reads only
    texts."""
    if how is None:
        return assembled
    counted = {trajectory.record: _tokens_of_images(trajectory) for trajectory in assembled.batch.trajectories}
    numbers = {number for of_record in counted.values() for number in of_record}
    if not numbers:
        return assembled
    shown = await _decoded(await images.of_numbers(database, numbers), how)
    unfit = {record: problem for record, of_record in counted.items() if (problem := _problem(of_record, shown))}
    for record, problem in unfit.items():
        log.error("%s does not train: %s", record, problem)
    kept = [trajectory for trajectory in assembled.batch.trajectories if trajectory.record not in unfit]
    pngs = {number: one.png for number, one in shown.items()}
    batch = msgspec.structs.replace(assembled.batch, trajectories=kept, images=pngs)
    return replace(assembled, batch=batch, broken=(*assembled.broken, *unfit))


async def _decoded(stored: Mapping[int, Image], how: Processing) -> dict[int, decoding.Shown]:
    """Those that can be decoded. Several at a time, because the step waits for them."""
    found: dict[int, decoding.Shown] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def decode(number: int, image: Image) -> None:
        async with gate:
            try:
                found[number] = await asyncio.to_thread(decoding.shown, image.data, how)
            except ImageError as wrong:
                log.error("the image %s: %s", label(number), wrong.message)

    async with asyncio.TaskGroup() as group:
        for number, image in stored.items():
            group.create_task(decode(number, image), name=f"image {label(number)}")
    return found


def _tokens_of_images(one: Trajectory) -> dict[int, set[int]]:
    """How many tokens each image has. A segment never ends within an image."""
    found: dict[int, set[int]] = {}
    for segment in one.segments:
        for run in image_runs(np.asarray(segment.ids)):
            found.setdefault(run.number, set()).add(run.stop - run.start)
    return found


def _problem(of_record: Mapping[int, set[int]], shown: Mapping[int, decoding.Shown]) -> str:
    for number, counts in of_record.items():
        if number not in shown:
            return f"its image {label(number)} cannot be read"
        if counts != {shown[number].tokens}:
            return f"its image {label(number)} has {shown[number].tokens} tokens, and had {sorted(counts)}"
    return ""
