"""Lists the runs of this user on this host, and the runs that key files open.

Invariants:
- The list waits at most `ANSWER_S` for each run and does not query a run that is down.
- Runs are identified by uuid, not by name.
- A run that could not be queried shows the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.client import Client, ClientKey
from agentrl.client.discovery import find
from agentrl.client.run_processes import coordinator_of
from agentrl.config import paths
from agentrl.config.paths import RunFile
from agentrl.errors import AgentrlError
from agentrl.protocol.rows import AlertRow, AlertState, AnyRow, RunRow
from tui.connection import Connection
from tui.model.mirror import Mirror

ANSWER_S = 3.0
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Place:
    """How a run is reached: by its name on this host, or by a key file."""

    run: str = ""
    key_file: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Options that make a command line reach it."""
        if self.key_file:
            return ("--key", self.key_file)
        return ("--run", self.run) if self.run else ()


@dataclass(frozen=True, slots=True)
class RunLine:
    place: Place
    name: str
    uuid: str = ""
    state: str = ""
    """The state that its coordinator reports; `down` without a coordinator, `silent` if it does not answer, or
    `damaged`."""
    began_at: float = 0.0
    step: int | None = None
    alerts: int = 0
    where: str = ""
    why: str = ""
    """The reason why it was not queried."""
    here: bool = False
    """Whether the console shows it now."""

    @property
    def key(self) -> str:
        return f"key/{self.place.key_file}" if self.place.key_file else f"run/{self.name}"

    @property
    def up(self) -> bool:
        return self.state not in ("down", "damaged")


def _run_line(place: Place, rows: Iterable[AnyRow], step: int | None, where: str) -> RunLine | None:
    """The line of a run whose coordinator answered."""
    found = list(rows)
    run = next((row for row in found if isinstance(row, RunRow)), None)
    if run is None:
        return None
    firing = sum(isinstance(row, AlertRow) and row.state is AlertState.FIRING for row in found)
    return RunLine(place, run.name, run.uuid, run.state, run.started_at, step, firing, where, run.reason)


def link(place: Place) -> Callable[[Mirror], Connection]:
    """A factory of connections to this run. Raises an error with a sentence if the run cannot be reached."""
    name, key_file = place.run or None, place.key_file or None
    find(name, key_file=key_file)
    return lambda mirror: Connection(mirror, lambda: Client.connect(name, key_file=key_file))


async def seen(key_files: Iterable[str], shown: str) -> list[RunLine]:
    """All runs of this user on this host, and those that key files open; `shown` is the uuid of the one shown now."""
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
    """The number of the newest committed step; None without committed steps or without an answer of the steward."""
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
                # Only these kinds, because all units of a large run may exceed the size of an answer.
                view = await client.snapshot(("run", "alert"), deadline_s=ANSWER_S)
                line = _run_line(place, view.rows.values(), await _newest_step(client), where)
                return line or RunLine(place, name, state="silent", where=where)
    except AgentrlError as error:
        return RunLine(place, name, state="silent", where=where, why=error.message)
    except TimeoutError:
        return RunLine(place, name, state="silent", where=where, why=f"It did not answer within {ANSWER_S:g} s.")
