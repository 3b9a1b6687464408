"""Loads the configuration from all its sources. `--set` overrides the environment, which overrides the run file, which
overrides the files that it extends, which override the defaults.

Invariants:
- Every value has exactly one known source.
- Relative paths become absolute here, because the coordinator has another working directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config import agentcpm_file, extended_files, introspection, own_environments
from agentrl.config.contradictions import nearest
from agentrl.config.relative_paths import absolute
from agentrl.config.run import RunConfig
from agentrl.config.tool_lock import ToolLock, with_digests
from agentrl.config.typed_paths import path_of
from agentrl.config.validation_errors import combine, error_of, unknown_key
from agentrl.config.yaml_reader import read_value
from agentrl.errors import ConfigError

PREFIX = "AGENTRL_"
DEFAULT = "default"
RESERVED_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        *("RUN", "INCARNATION", "UNIT", "SLOT", "GROUP", "RUN_DIR", "STATE_DIR", "COORDINATOR", "TOKEN", "KEY"),
        *("HOME", "CACHE", "HOST", "HEARTBEAT_S", "ORPHAN_LEASE_S"),
    )
)
"""Variables by which the processes of a run find each other. They never set configuration values."""

_WHOLE = introspection.Shape(RunConfig)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration, and the source of each value."""

    config: RunConfig
    sources: dict[str, str]
    """The source of each dotted key: `demo.yaml:12`, `environment AGENTRL_X__Y`, `--set x.y` or `default`."""
    path: Path | None
    """The absolute path of the run file, or None."""
    given: tuple[str, ...]
    """Dotted keys whose value is not the default."""


@dataclass(frozen=True, slots=True)
class _Override:
    path: tuple[str, ...]
    value: Any
    source: str


def load_config(
    path: str | os.PathLike[str] | None = None, *, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """Reads, merges and validates. Raises ConfigError with all mistakes.

    `sets` are the arguments of `--set`, such as `sidecars.web.count=3`.
    """
    file = None if path is None else path_of(path).absolute()
    tree = extended_files.Written() if file is None else extended_files.read(file)
    base = Path.cwd() if file is None else file.parent
    own_environments.fill_in(tree, base)
    agentcpm_file.fill_in(tree, base)
    env = os.environ if environ is None else environ
    overrides = [*_from_environment(env, tree.value), *_from_sets(sets)]
    misspelt = [unknown_key(one.path, one.source) for one in overrides if _WHOLE.at(one.path) is None]
    misspelt += [f"{one.source}: write extends into the run file." for one in overrides if one.path[0] == "extends"]
    misspelt += _of_groups_that_are_not_there(overrides, tree.value)
    if misspelt:
        raise combine(misspelt)

    written, directories = tree.sources, tree.directories
    value = _drop_empty(tree.value, _WHOLE)
    for one in overrides:
        _put(value, one, written)
    if not value.get("name") and file is None:
        raise ConfigError("There is no run file, and no name is given.", hint="Try `agentrl up RUN.yaml`.")
    try:
        config = RunConfig.model_validate(value)
    except ValidationError as invalid:
        default = file.name if file else ""
        raise error_of(invalid, lambda at: _source(written, at, nearest=True) or default) from None
    # A value of a variable or `--set` comes from no file.
    config = absolute(config, lambda at: directories[at] if _is_line(written.get(at, "")) else base)
    if file is not None and config.tools:
        config = with_digests(config, ToolLock.beside(file))
    sources = {
        ".".join(at): _source(written, at) or DEFAULT for at, _ in introspection.leaves(config.model_dump(mode="json"))
    }
    given = tuple(key for key, source in sources.items() if source != DEFAULT)
    return Loaded(config, sources, file, given)


def _from_environment(environ: Mapping[str, str], file: Mapping[str, Any]) -> Iterator[_Override]:
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED_VARIABLES:
            continue
        segments = name.removeprefix(PREFIX).split("__")
        # A variable of one word counts only if it is a field, because other programs may use the prefix too.
        if len(segments) == 1 and not _is_value(_WHOLE.child(segments[0].lower())):
            continue
        source = f"environment {name}"
        yield _Override(_keys_of(segments, file), read_value(environ[name], source), source)


def _is_value(place: introspection.Shape | None) -> bool:
    return place is not None and place.section is None and not place.is_table


def _keys_of(segments: Sequence[str], file: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a variable. Variables are upper case without dashes, so names chosen by the user are looked up in the
    file."""
    keys: list[str] = []
    place: introspection.Shape | None = _WHOLE
    here: Any = file
    for segment in segments:
        key = segment.lower()
        if place is not None and place.is_table:
            known = here if isinstance(here, Mapping) else {}
            below = place.child("")
            plain_text = below is not None and _is_value(below)
            alike = (name for name in known if str(name).upper().replace("-", "_") == segment.upper())
            key = next(alike, segment if plain_text else key)
        keys.append(key)
        here = here.get(key) if isinstance(here, Mapping) else None
        place = place.child(key) if place is not None else None
    return tuple(keys)


def _from_sets(sets: Sequence[str]) -> Iterator[_Override]:
    for argument in sets:
        key, equals, text = argument.partition("=")
        key = key.strip()
        if not equals or not key or not all(key.split(".")):
            raise ConfigError(f"--set {argument}: this is not KEY=VALUE.", hint="Try --set sidecars.web.count=3.")
        source = f"--set {key}"
        yield _Override(tuple(key.split(".")), read_value(text, source), source)


def _of_groups_that_are_not_there(overrides: Sequence[_Override], file: Mapping[str, Any]) -> Iterator[str]:
    """Returns messages about values of groups that are not in the file, because a single value cannot define a
    group."""
    there = file.get("sidecars")
    known = {str(name) for name in there} if isinstance(there, Mapping) else set()
    made = {one.path[1] for one in overrides if one.path[0] == "sidecars" and one.path[2:] in ((), ("command",))}
    for one in overrides:
        if one.path[0] == "sidecars" and len(one.path) > 2 and one.path[1] not in known | made:
            yield f"{one.source}: there is no group {one.path[1]}; {nearest(one.path[1], tuple(sorted(known)))}"


def _put(value: dict[str, Any], one: _Override, written: dict[tuple[str, ...], str]) -> None:
    here = value
    for depth, key in enumerate(one.path[:-1], start=1):
        below = here.setdefault(key, {})
        if not isinstance(below, dict):
            at = ".".join(one.path[:depth])
            raise ConfigError(f"{one.source}: {at} has no keys of its own that could be set; set it as a whole.")
        here = below
    here[one.path[-1]] = one.value
    for below_it in [at for at in written if at[: len(one.path)] == one.path]:
        del written[below_it]
    written[one.path] = one.source


def _drop_empty(value: Any, place: introspection.Shape | None) -> Any:
    """A section whose lines are all comments is null in YAML. It counts as missing."""
    if not isinstance(value, dict) or place is None:
        return value
    return {
        key: _drop_empty(item, place.child(key))
        for key, item in value.items()
        if item is not None or place.is_table or key not in place.keys
    }


def _source(written: Mapping[tuple[str, ...], str], at: tuple[str, ...], *, nearest: bool = False) -> str:
    """Returns the source of a value. With `nearest`, a missing value has the source of the section that should contain
    it.
    """
    if found := written.get(at):
        return found
    for length in range(len(at) - 1, -1, -1):
        above = written.get(at[:length], "")
        # The first line of a section is not the source of a value that is not in the section.
        if above and (nearest or not _is_line(above)):
            return above
    return ""


def _is_line(source: str) -> bool:
    return source.rpartition(":")[2].isdecimal()
