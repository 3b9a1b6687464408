"""Which runs there are, and how the console comes to one: by its name on this host, or by a key file.

Invariants: a list never waits longer than `ANSWER_S` for anybody, and asks nobody who is not up; a run that is read
from this host is met again by its uuid, so another one of the same name is refused by whoever answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from agentrl.client import Client, ClientKey
from agentrl.client.discovery import find
from agentrl.client.run_processes import coordinator_of
from agentrl.config import paths
from agentrl.config.paths import RunFile
from agentrl.errors import AgentrlError
from tui.connection import Connection
from tui.model import runs
from tui.model.mirror import Mirror
from tui.model.runs import Place, RunLine

ANSWER_S = 3.0
AT_ONCE = 8


def link(place: Place) -> Callable[[Mirror], Connection]:
    """A connection to the run of that place. Raises an error with a sentence where there is none."""
    name, key_file = place.run or None, place.key_file or None
    find(name, key_file=key_file)
    return lambda mirror: Connection(mirror, lambda: Client.connect(name, key_file=key_file))


async def seen(key_files: Iterable[str], shown: str) -> list[RunLine]:
    """All runs of this user on this host, and those that key files open; `shown` is the uuid of the one in sight."""
    limit = asyncio.Semaphore(AT_ONCE)
    of_host = [_of_host(file, limit) for file in paths.list_runs()]
    of_keys = [_of_key(path, limit) for path in dict.fromkeys(key_files)]
    lines = await asyncio.gather(*of_host, *of_keys)
    return [replace(line, here=bool(shown) and line.uuid == shown) for line in lines]


async def _of_host(file: RunFile, limit: asyncio.Semaphore) -> RunLine:
    place, where = Place(run=file.name), file.run_dir
    if file.broken:
        return RunLine(place, file.name, state="damaged", why=file.broken)
    if coordinator_of(paths.state_dir(file.name)) is None:
        return RunLine(place, file.name, file.uuid, "down", file.created_at, where=where)
    line = await _asked(place, file.name, where, limit)
    return line if line.uuid else replace(line, uuid=file.uuid, began_at=file.created_at)


async def _of_key(path: str, limit: asyncio.Semaphore) -> RunLine:
    place = Place(key_file=path)
    try:
        where = f"{ClientKey.load(path).address} by {Path(path).name}"
    except AgentrlError as broken:
        return RunLine(place, Path(path).stem, state="damaged", where=path, why=broken.message)
    return await _asked(place, Path(path).stem, where, limit)


async def _newest_step(client: Client) -> int | None:
    """Its number; None where there is none, or nobody who knows."""
    try:
        page = await client.list_steps(filter="status=committed", sort="-leased_at", limit=1, deadline_s=ANSWER_S / 2)
    except AgentrlError:
        return None
    return page.rows[0].get("step") if page.rows else None


async def _asked(place: Place, name: str, where: str, limit: asyncio.Semaphore) -> RunLine:
    try:
        async with limit, asyncio.timeout(ANSWER_S):
            connecting = Client.connect(place.run or None, key_file=place.key_file or None, timeout_s=ANSWER_S)
            async with connecting as client:
                # Row by row: the units of a large run are more than one answer may hold, and nobody needs them here.
                view = await client.snapshot(("run", "alert"), deadline_s=ANSWER_S)
                line = runs.told(place, view.rows.values(), await _newest_step(client), where)
                return line or RunLine(place, name, state="silent", where=where)
    except AgentrlError as error:
        return RunLine(place, name, state="silent", where=where, why=error.message)
    except TimeoutError:
        return RunLine(place, name, state="silent", where=where, why=f"It did not answer within {ANSWER_S:g} s.")
