"""Verbs about the run file: config show, schema, check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.verbs import Cli, group, verb
from agentrl.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from agentrl.config.load import Loaded

USUAL_FILES = ("run.yaml", "agentrl.yaml")

RunFile = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN.yaml]", help="The run file; else run.yaml or agentrl.yaml here.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set one value; may be repeated.", show_default=False),
]


def register(app: typer.Typer) -> None:
    config = group(app, "config", "The run file: its values, their sources, its schema.")
    verb(config, "show")(show)
    verb(config, "check")(check)
    verb(config, "schema")(schema)


def usual_file() -> Path | None:
    """The run file of the working directory, if there is one."""
    return next((Path(name) for name in USUAL_FILES if Path(name).is_file()), None)


def load(file: Path | None, sets: list[str] | None) -> Loaded:
    """The configuration that is meant. Raises ConfigError."""
    from agentrl.config.load import load_config

    chosen = file or usual_file()
    if chosen is None:
        raise ConfigError(
            f"There is no run file: neither {' nor '.join(USUAL_FILES)} is here.", hint="Name one: RUN.yaml."
        )
    return load_config(chosen, sets=tuple(sets or ()))


def show(
    cli: Cli,
    file: RunFile = None,
    sets: Sets = None,
    sources: Annotated[bool, typer.Option("--sources", help="Say where each value came from.")] = False,
    given: Annotated[bool, typer.Option("--given", help="Leave out the defaults.")] = False,
) -> ExitCode:
    """Print what holds after file, environment and --set."""
    from agentrl.cli import output
    from agentrl.config.show import document, rows

    loaded = load(file, sets)
    if cli.json:
        shown = rows(loaded, only_given=given)
        if sources or given:
            output.emit([{"key": row.key, "value": row.value, "source": row.source} for row in shown])
        else:
            output.emit(document(loaded))
        return ExitCode.OK
    lines = [
        (row.key, _as_text(row.value), *([row.source] if sources else [])) for row in rows(loaded, only_given=given)
    ]
    output.show(output.table(("key", "value", *(["source"] if sources else [])), lines), cli.color)
    return ExitCode.OK


def _as_text(value: object) -> str:
    import json

    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def check(cli: Cli, file: RunFile = None, sets: Sets = None) -> ExitCode:
    """Check a run file and its datasets without starting anything."""
    from agentrl.cli import datasets, output
    from agentrl.config.show import advice

    loaded = load(file, sets)
    advised = [*advice(loaded), *datasets.look(loaded, sets or ())]
    units = sum(loaded.config.sizes.values())
    if cli.json:
        document = {"name": loaded.config.name, "file": str(loaded.path or ""), "units": units, "valid": True}
        output.emit({**document, "advice": advised})
    else:
        for line in advised:
            output.note(line)
        output.say(f"{loaded.path}: the run {loaded.config.name} with {units} units is valid.")
    return ExitCode.OK


def schema(cli: Cli) -> ExitCode:
    """Print the JSON schema of run files, for editors."""
    from agentrl.cli import output
    from agentrl.config.schema import json_schema

    output.emit(json_schema())
    return ExitCode.OK
