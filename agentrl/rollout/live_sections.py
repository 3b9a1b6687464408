"""Follows the sections of the run file that take effect without a restart.

Invariants: changes by `agentrl up` are read once, within seconds; a file that cannot be read changes nothing; on a host
without the run's directory the file is fetched again from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.config.paths import IN_FORCE
from agentrl.config.readers import live_sections
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError
from agentrl.store import run_database

log = logging.getLogger("sampler")
LOOK_EVERY_S = 1.0
FETCH_EVERY = 15
"""A file on another host is fetched once in this many looks."""


async def follow(
    run_dir: Path, config: RunConfig, take: Callable[[RunConfig], None], fetch: Callable[[], Awaitable[None]]
) -> None:
    """Calls `take` when a live section has changed. Runs until cancelled."""
    held, seen, looks = config, _stamp(run_dir), 0
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        looks += 1
        try:
            if looks % FETCH_EVERY == 0:
                await fetch()
            if (stamp := _stamp(run_dir)) == seen:
                continue
            seen = stamp
            found = run_database.configuration(run_dir)
            changed = [name for name in live_sections() if getattr(found, name) != getattr(held, name)]
            if changed:
                held = found
                take(found)
                log.info("%s of the run file changed, and hold from now on", ", ".join(changed))
        except AgentrlError as failed:
            log.warning("the configuration in force is not read again: %s", failed)


def _stamp(run_dir: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(run_dir / IN_FORCE)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)
