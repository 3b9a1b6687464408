"""The tool servers of episodes without a run, in the process that plays them.

Invariant: no port is open to other machines, and the servers end with their context.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.http.token_server import listening
from agentrl.rollout.service_directory import SamplerToolbox
from agentrl.toolbox.api import build_app
from agentrl.toolbox.toolbox import Toolbox

LOOK_EVERY_S = 0.02


@contextlib.asynccontextmanager
async def running(config: RunConfig, run_dir: Path) -> AsyncIterator[SamplerToolbox]:
    token = secrets.token_urlsafe()
    made = Toolbox(config.tools, run_dir=run_dir, name="toolbox")
    async with made.running(), listening(build_app(made, token)) as url:
        await _servers_are_there(made)
        client = SamplerToolbox(url, token)
        try:
            yield client
        finally:
            await client.aclose()


async def _servers_are_there(made: Toolbox) -> None:
    """Raises ConfigError for a server that does not start."""
    while not all(server.usable for server in made.servers()):
        for server in made.servers():
            if server.problem:
                raise ConfigError(f"tools.{server.id}: {server.problem}")
        await asyncio.sleep(LOOK_EVERY_S)
