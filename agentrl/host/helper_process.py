"""A process that the host agent keeps running beside itself: the tunnel, the file process.

Invariants:
- The process ends with the agent, because its input ends.
- While it is needed, it is started again after it ended, and gets the last line of each kind again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentrl.host import procfs

log = logging.getLogger(__name__)
AGAIN_S = 1.0


class HelperProcess:
    """`on_line` gets each line of JSON that the process writes."""

    def __init__(self, run: str, module: str, log_file: Path, on_line: Callable[[dict[str, Any]], None]) -> None:
        self._run = run
        self._module = module
        self._log_file = log_file
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._running: asyncio.Task[None] | None = None
        self._told: dict[str, dict[str, Any]] = {}

    @property
    def is_open(self) -> bool:
        return self._running is not None

    def open(self, arguments: Sequence[str]) -> None:
        """Start the process, and end one with other arguments."""
        self.close()
        self._running = asyncio.create_task(self._keep_running(tuple(arguments)), name=self._module)

    def tell(self, kind: str, line: dict[str, Any]) -> None:
        self._told[kind] = line
        self._write(line)

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None
        if self._process is not None:
            self._end(self._process)

    async def closed(self) -> None:
        """Close, and return when everything is closed."""
        running = self._running
        self.close()
        if running is not None:
            await asyncio.gather(running, return_exceptions=True)

    async def _keep_running(self, arguments: tuple[str, ...]) -> None:
        while True:
            try:
                await self._run_once(arguments)
            except OSError as failed:
                log.error("%s cannot be started: %s.", self._module, failed)
            log.warning("%s has ended; it is started again.", self._module)
            await asyncio.sleep(AGAIN_S)

    async def _run_once(self, arguments: tuple[str, ...]) -> None:
        """Start the process once and handle its lines until it ends."""
        process = self._process = self._started(arguments)
        for told in self._told.values():
            self._write(told)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while line := await reader.readline():
                self._on_line(json.loads(line))
        finally:
            transport.close()
            self._end(process)

    def _started(self, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """The started process. Raises OSError."""
        command = [sys.executable, "-m", self._module, *arguments]
        env = procfs.without_marks(os.environ) | {"AGENTRL_RUN": self._run}
        output = os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pipe = subprocess.PIPE
            return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=output, start_new_session=True)
        finally:
            os.close(output)

    def _write(self, line: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the process by closing its input."""
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.returncode = 0  # the agent reaps all its children
        if self._process is process:
            self._process = None
