"""How the program of an environment is started; see `programs`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.adapters.sources import Source
from agentrl.errors import AgentrlError

_PROGRAM = str(Path(__file__).with_name("programs") / "main.py")
OWN_PYTHON = "{python}"
_MARKS = ("AGENTRL_HOST", "AGENTRL_INCARNATION")
"""`down` finds every process of a run by these variables. They grant no rights."""
LONGEST_LINE = 64 * 2**20
LONGEST_ERROR = 1_000
"""Characters of what a program says of a failure."""


class PlayerError(AgentrlError):
    """A request to an environment of another package failed."""


@dataclass(frozen=True, slots=True)
class PlainStart:
    """One start of a program without a sandbox."""

    command: list[str]
    cwd: None = None

    @property
    def env(self) -> dict[str, str]:
        return environment_variables()

    def passing(self) -> contextlib.AbstractContextManager[list[int]]:
        return contextlib.nullcontext([])

    async def ended(self, code: int) -> str:
        return f"its program ended with {code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """An environment of another package, as a run file has it."""

    source: Source
    python: str = OWN_PYTHON
    """The Python that has the package."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the package's own constructor."""
    rows: int
    held_out: int

    @property
    def program(self) -> Path:
        return Path(_PROGRAM)

    @property
    def command(self) -> list[str]:
        asked = {
            "module": self.source.facts.program,
            "name": self.source.name,
            "arguments": dict(self.arguments),
            "rows": self.rows,
            "held_out": self.held_out,
        }
        return [self.python.replace(OWN_PYTHON, sys.executable), _PROGRAM, json.dumps(asked)]

    def start(self) -> PlainStart:
        return PlainStart(self.command)

    def error(self, what: str) -> PlayerError:
        """The error for `what`, which went wrong in the program or the package."""
        facts = self.source.facts
        if f"No module named '{facts.package.replace('-', '_')}'" in what:
            python = self.python.replace(OWN_PYTHON, sys.executable)
            wanted = shlex.quote(facts.wanted or facts.package)
            hint = f"{python} -m pip install {wanted}"
            if facts.apart and self.python == OWN_PYTHON:
                hint = (
                    f"python3 -m venv DIR && DIR/bin/pip install {wanted}; then `python: DIR/bin/python` beside `code`"
                )
            return PlayerError(f"{self.source}: the package {facts.package} is not installed in {python}.", hint=hint)
        return PlayerError(f"{self.source}: {what.rstrip('.')}.")


def environment_variables() -> dict[str, str]:
    """The variables of this process without those of the run, which hold addresses and tokens."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_") or name in _MARKS}
    return kept | {"PYTHONUNBUFFERED": "1"}
