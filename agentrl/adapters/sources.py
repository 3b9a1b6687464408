"""Reads the words for environments of others: `KIND:NAME`.

Invariant: a word without a known kind is a path, which may contain a colon.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known about a kind of environment without importing its package."""

    package: str = ""
    """The name that pip uses; empty if no package is needed."""
    apart: bool = False
    """Whether the package needs a Python of its own, because it wants other versions of packages than agentrl."""
    wanted: str = ""
    """The requirement for pip, if it is more than the name of the package."""
    program: str = ""
    """The module of `programs` that plays it; empty if agentrl itself plays it."""
    resumable: bool = False
    """Whether an episode that is played again with the same replies takes the same course."""


KINDS = {
    "gymnasium": Kind("gymnasium", program="gymnasium_games", resumable=True),
    "reasoning-gym": Kind("reasoning-gym", program="reasoning_gym_puzzles", resumable=True),
    "verifiers": Kind("verifiers", apart=True, wanted="verifiers<0.2", program="verifiers_rollouts"),
    "openenv": Kind("websockets", program="openenv_server"),
    "harbor": Kind(),
    "mcp": Kind(),
}


@dataclass(frozen=True, slots=True)
class Source:
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def facts(self) -> Kind:
        return KINDS[self.kind]

    @property
    def environment(self) -> str:
        """The name of this environment in a run file."""
        last = self.name.rstrip("/").rpartition("/")[2]
        word = re.sub(r"\W+", "_", last).strip("_")
        return word if word.isidentifier() else f"{self.kind}_{word}".replace("-", "_").rstrip("_")


def source_of(word: str) -> Source | None:
    """The source that a word names, or None if it names a file."""
    kind, colon, name = word.partition(":")
    return Source(kind, name) if colon and kind in KINDS and name else None
