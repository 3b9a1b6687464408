"""Formats the resolved configuration for `agentrl config show` and `check`, and the changes between two configurations.

Invariants:
- A secret is shown as its reference.
- A literal that looks like a secret is hidden.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config import introspection
from agentrl.config.load import DEFAULT, Loaded
from agentrl.config.placeholders import unknown
from agentrl.config.run import RunConfig
from agentrl.config.secrets import is_reference, names_a_secret
from agentrl.config.serialization import config_to_plain

HIDDEN = "(hidden)"
MOST_CHANGES = 12
LONGEST_VALUE = 60
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ShownValue:
    key: str
    value: Any
    """Plain: text, a number, a boolean, a list or None."""
    source: str


def rows(loaded: Loaded, *, only_given: bool = False) -> list[ShownValue]:
    """One row per value, in the order of the fields; `only_given` omits defaults."""
    plain = loaded.config.model_dump(mode="json")
    shown = [
        ShownValue(".".join(path), HIDDEN if _is_bare_secret(path, value) else value, loaded.sources[".".join(path)])
        for path, value in introspection.leaves(plain)
    ]
    return [row for row in shown if not only_given or row.source != DEFAULT]


def document(loaded: Loaded) -> dict[str, Any]:
    """The whole configuration as plain data."""
    plain = config_to_plain(loaded.config)
    for path in _bare_secrets(plain):
        here = plain
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = HIDDEN
    return plain


def changes(before: RunConfig, after: RunConfig) -> list[str]:
    """The settings that differ between two configurations, as sentences."""
    old, new = (dict(introspection.leaves(config_to_plain(config))) for config in (before, after))
    paths = [path for path in {**old, **new} if old.get(path, _ABSENT) != new.get(path, _ABSENT)]
    listed = [
        f"{'.'.join(path)} goes from {_short(path, old.get(path, _ABSENT))} to {_short(path, new.get(path, _ABSENT))}"
        for path in paths[:MOST_CHANGES]
    ]
    more = len(paths) - MOST_CHANGES
    return [*listed, f"{more} more settings change"] if more > 0 else listed


def _short(path: tuple[str, ...], value: object) -> str:
    if value is _ABSENT:
        return "nothing"
    text = HIDDEN if _is_bare_secret(path, value) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def advice(loaded: Loaded) -> list[str]:
    """Warnings about values that are allowed but unwise."""
    secrets = [
        f"{loaded.sources['.'.join(path)]}: {'.'.join(path)} looks like a literal secret; "
        "write a reference instead, env:NAME or file:PATH."
        for path in _bare_secrets(config_to_plain(loaded.config))
    ]
    return [*secrets, *_odd_braces(loaded), *_missing_programs(loaded)]


def _odd_braces(loaded: Loaded) -> Iterator[str]:
    for name, sidecar in loaded.config.sidecars.items():
        for key, texts in sidecar.with_placeholders():
            if found := dict.fromkeys(each for text in texts for each in unknown(text)):
                shown = ", ".join(f"{{{each}}}" for each in found)
                yield f"sidecars.{name}.{key}: {shown} is no placeholder and stays as it is."


def _missing_programs(loaded: Loaded) -> Iterator[str]:
    """Warnings about programs that this host lacks. Groups that run only on named hosts are not checked."""
    for name, sidecar in loaded.config.sidecars.items():
        program = sidecar.command[0]
        if sidecar.hosts or "{" in program:
            continue
        where = sidecar.env.get("PATH")
        if shutil.which(Path(sidecar.cwd, program) if "/" in program else program, path=where) is None:
            source = loaded.sources[f"sidecars.{name}.command"]
            yield f"{source}: sidecars.{name}.command: there is no program {program} on this host."


def _bare_secrets(plain: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    return (path for path, value in introspection.leaves(plain) if _is_bare_secret(path, value))


def _is_bare_secret(path: tuple[str, ...], value: object) -> bool:
    in_environment = len(path) > 1 and path[-2] == "env"
    return in_environment and isinstance(value, str) and names_a_secret(path[-1]) and not is_reference(value)
