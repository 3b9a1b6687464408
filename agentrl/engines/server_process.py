"""The process of an inference server, from its start to the end of all its children.

Invariants: waiting for a server that has ended raises immediately; a server has its own process group, of which no
process is left when `close` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from agentrl.engines.interface import EngineError, EngineGoneError

LOOK_EVERY_S = 0.25


class ServerClient(Protocol):
    """The requests that every server takes."""

    async def resume(self) -> None: ...

    async def close(self) -> None: ...


class ServerProcess(ABC):
    """A kind of server declares its name and how one sees that it answers; its client has the rest."""

    NAME: ClassVar[str]
    TERM_WITHIN_S: ClassVar[float] = 10.0
    """How long the server has to end by itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    @abstractmethod
    def client(self) -> ServerClient: ...

    @abstractmethod
    async def answers(self) -> bool:
        """Whether the server is up."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.returncode

    def check(self) -> None:
        if self.ended is not None:
            raise EngineGoneError(f"{self.NAME}'s server ended with {self.ended}; see its output.")

    async def until_up(self, within_s: float) -> None:
        """Waits until it answers. Raises EngineGoneError if it ends, EngineError if it takes longer."""
        try:
            async with asyncio.timeout(within_s):
                while not await self.answers():
                    self.check()
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise EngineError(f"{self.NAME}'s server was not up within {within_s:g} s; see its output.") from None

    async def close(self) -> None:
        await self.client.close()
        if self.ended is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.TERM_WITHIN_S):
                    await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


async def started(command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Starts a server in a process group of its own. It shares the output of this process."""
    return await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True, env=dict(environment)
    )
