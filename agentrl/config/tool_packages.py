"""Defines the packages of a tool server: `python:` and `npm:` in its section of the run file.

`python: mcp-server-git==1.0` and `npm: [NAME@1.0, OTHER]` are short for a section with `packages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agentrl.config.field_types import NO_UNIT, Flag, Section, Words

PackageKind = Literal["python", "npm"]


def _without_options(packages: Sequence[str]) -> Sequence[str]:
    """pip and npm would take such a word as an option: one could name another index."""
    for package in packages:
        if package.startswith("-") or not package.isprintable():
            raise ValueError(f"{package!r} is not a package; write NAME==VERSION (python) or NAME@VERSION (npm)")
    return packages


class Packages(Section):
    """Packages that are installed for one server, in a separate directory."""

    packages: Annotated[Words, Field(min_length=1), AfterValidator(_without_options), NO_UNIT]
    """Requirements of pip (`NAME==VERSION`), or of npm (`NAME@VERSION`). The lock file pins them and all their
    dependencies."""
    build: Annotated[Flag, NO_UNIT] = False
    """Permits packages without a wheel and the scripts of npm packages. Their code runs during the installation with
    your rights, without a sandbox."""
    locked: str = ""
    """The digest of the pins in the lock file; never written by hand."""


def _of_words(value: Any) -> Any:
    return {"packages": value} if isinstance(value, str | list | tuple) else value


PackagesOrWords = Annotated[
    Packages | None,
    BeforeValidator(_of_words, json_schema_input_type=str | list[str] | Packages | None),
]
