"""Files of evaluations that this console shows.

Invariants: a file that did not change is neither read nor summed up again, and this work delays no key; files that a
person opened are remembered as long as the console runs, even if it switches to another run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from agentrl.evaluation import results_file
from agentrl.evaluation.summaries import Summary, summaries
from agentrl.protocol.evaluation_commands import Attempt


class Results(NamedTuple):
    attempts: list[Attempt]
    summaries: list[Summary]
    """By model and environment."""


class ResultFiles:
    def __init__(self) -> None:
        self.opened: list[str] = []
        """Files that a person opened."""
        self._known: dict[str, tuple[tuple[int, int], Results]] = {}

    async def read(self, file: str) -> Results:
        """Raises ConfigError."""
        return await asyncio.to_thread(self._read, file)

    def _read(self, file: str) -> Results:
        try:
            found = Path(file).stat()
            stamp = (found.st_mtime_ns, found.st_size)
        except OSError:
            stamp = (0, 0)
        if file not in self._known or self._known[file][0] != stamp:
            attempts = results_file.counting(Path(file))
            self._known[file] = (stamp, Results(attempts, summaries(attempts)))
        return self._known[file][1]
