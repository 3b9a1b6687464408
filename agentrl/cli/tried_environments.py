"""Builds the configuration of environments that are tried or checked without a run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.adapters.sources import Source, source_of
from agentrl.cli.adapted import environment_of
from agentrl.config.typed_paths import path_of
from agentrl.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

_RUN_FILE = "name: trial\nmodel: {{build: tiny}}\nenvironments:\n{environments}"


def found(named: Path) -> Path:
    """The named file, or the file of the environment that an installed package has under this name. Raises
    ConfigError."""
    if named.exists():
        return named
    from agentrl.config.own_environments import installed

    file = installed(str(named)) if str(named).isidentifier() else None
    if file is None:
        hint = "Name a Python file with an environment, a run file, or an environment of an installed package."
        raise ConfigError(f"There is no file {named}.", hint=hint)
    return file


def configured(
    given: str,
    arguments: list[str] | None,
    model: Path | None,
    sets: list[str] | None,
    *,
    python: Path | None = None,
) -> RunConfig:
    """A configuration with the environments of a Python file, with the environment of a word, or of a run file."""
    chosen = [*([f"model={{path: {_quoted(str(model.absolute()))}}}"] if model is not None else []), *(sets or [])]
    if (source := source_of(given)) is not None:
        if source.kind == "harbor":  # The path is relative to this directory, but the run file is written elsewhere.
            source = Source(source.kind, str(path_of(source.name).absolute()))
        environment = environment_of(str(source), arguments, python)
        return _loaded(f"  {source.environment}: {_quoted(environment)}\n", chosen)
    if arguments or python is not None:
        option = "--with" if arguments else "--python"
        raise UsageError(f"{option} is for an environment of another package, such as gymnasium:FrozenLake-v1.")
    return _of_file(found(Path(given)), chosen)


def _of_file(file: Path, chosen: list[str]) -> RunConfig:
    from agentrl.config.load import load_config
    from agentrl.config.own_environments import names_in

    if file.suffix != ".py":
        return load_config(file, sets=chosen).config
    names = names_in(file.absolute())
    if not names:
        raise ConfigError(f"{file} declares no environment.", hint='Write rl.Environment("NAME", ...).')
    return _loaded("".join(f"  {name}: {_quoted(str(file.absolute()))}\n" for name in names), chosen)


def _loaded(environments: str, sets: list[str]) -> RunConfig:
    from agentrl.config.load import load_config

    with tempfile.TemporaryDirectory(prefix="agentrl-try-") as folder:
        run_file = Path(folder, "run.yaml")
        run_file.write_text(_RUN_FILE.format(environments=environments))
        return load_config(run_file, sets=sets).config


def _quoted(value: object) -> str:
    """As YAML has it, which reads JSON, but no character that JSON writes as two."""
    return json.dumps(value, ensure_ascii=False)


def chosen(config: RunConfig, wanted: str) -> str:
    names = list(config.environments)
    if not names:
        raise ConfigError("The run file has no environments.")
    if wanted and wanted not in names:
        raise ConfigError(f"There is no environment {wanted!r}.", hint=f"There are {', '.join(names)}.")
    if not wanted and len(names) > 1:
        raise ConfigError(
            f"There are several environments: {', '.join(names)}.", hint="Choose one: --environment NAME."
        )
    return wanted or names[0]
