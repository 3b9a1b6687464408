"""Installs the packages of a tool server again if its environment was removed, outside of the toolbox's loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_lock import kept_pins, packages_of
from agentrl.errors import AgentrlError
from agentrl.tool_environments import environment_cache
from agentrl.tool_environments.environments import environment_of


class ServerPackages:
    def __init__(self, name: str, server: ToolServer, run_dir: Path) -> None:
        self._name = name
        self._server = server
        self._run_dir = run_dir
        self._one_at_a_time = asyncio.Lock()

    async def installed(self, on_step: Callable[[str], None]) -> None:
        """Return when the environment exists; from then on it is not removed. `on_step` gets the present step.

        Raises AgentrlError.
        """
        if packages_of(self._server) is None:
            return
        async with self._one_at_a_time:
            place = environment_of(self._name, self._server, self._run_dir)
            assert place is not None
            if not _is_in_use(place):
                await self._install(on_step)
                environment_cache.use(place)

    async def _install(self, on_step: Callable[[str], None]) -> None:
        found = packages_of(self._server)
        assert found is not None
        pins = kept_pins(self._name, found[1], self._run_dir)
        wanted = [{"name": self._name, "program": self._server.start_command[0], "pins": pins}]
        program = [sys.executable, "-m", "agentrl.tool_environments", "install"]
        process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE, start_new_session=True)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(wanted).encode())
            process.stdin.close()
            problem = AgentrlError(f"The packages of {self._name} were not installed: their installer was ended.")
            async for line in process.stdout:
                news = json.loads(line)
                if "step" in news:
                    on_step(news["step"])
                if "error" in news:
                    problem = AgentrlError(news["error"], hint=news["hint"])
            if await process.wait() != 0:
                raise problem
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                await process.wait()


def _is_in_use(place: Path) -> bool:
    """Whether the environment exists. If so, this process uses it from now on."""
    try:
        if not environment_cache.is_usable(place):
            return False
        environment_cache.use(place)
    except FileNotFoundError:
        return False
    return True
