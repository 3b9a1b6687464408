"""Defines the commands `config show`, `config check` and `config schema`, and loads the run file for other commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ConfigError, ExitCode, OperationFailedError
from agentrl.formatting.amounts import counted

if TYPE_CHECKING:
    from agentrl.config.load import Loaded

USUAL_FILES = ("run.yaml", "agentrl.yaml")

RunFile = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN.yaml]", help="Default: run.yaml or agentrl.yaml here.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set one value; may be repeated.", show_default=False),
]


def register(app: typer.Typer) -> None:
    config = group(app, "config", "The run file: its values, their sources, its schema.")
    add_command(config, "show")(show)
    add_command(config, "check")(check)
    add_command(config, "schema")(schema)


def usual_file() -> Path | None:
    """The run file of the working directory, if there is one."""
    return next((Path(name) for name in USUAL_FILES if Path(name).is_file()), None)


def chosen_file(cli: Cli, file: Path | None, sets: list[str] | None) -> tuple[Path | None, tuple[str, ...]]:
    """The run file and its settings: the named file, or that of the last `up` of the named run, or the file in this
    directory."""
    from agentrl.cli.up_transaction import last_up

    chosen_sets = tuple(sets or ())
    if file is not None or not cli.run:
        return file or usual_file(), chosen_sets
    from agentrl.client.discovery import state_of

    before = last_up(state_of(cli.run))
    if before is None:
        raise ConfigError(f"The run {cli.run} does not know its run file.", hint="Name it: RUN.yaml.")
    return before[0], (*before[1], *chosen_sets)


def load(cli: Cli, file: Path | None, sets: list[str] | None) -> tuple[Loaded, tuple[str, ...]]:
    """The configuration and its settings by `--set`. Raises ConfigError."""
    from agentrl.config.load import load_config

    chosen, chosen_sets = chosen_file(cli, file, sets)
    if chosen is None:
        raise ConfigError(
            f"There is no run file: neither {' nor '.join(USUAL_FILES)} is here.", hint="Name one: RUN.yaml."
        )
    loaded = load_config(chosen, sets=chosen_sets)
    if cli.run and loaded.config.name != cli.run:
        raise ConfigError(
            f"{chosen} is the file of the run {loaded.config.name}, not of {cli.run}.",
            hint="Leave --run out, or name the other file.",
        )
    return loaded, chosen_sets


def show(
    cli: Cli,
    file: RunFile = None,
    sets: Sets = None,
    sources: Annotated[bool, typer.Option("--sources", help="Show where each value comes from.")] = False,
    given: Annotated[bool, typer.Option("--given", help="Leave out the defaults.")] = False,
) -> ExitCode:
    """Print the values after file, environment and --set."""
    from agentrl.cli import output
    from agentrl.config.show import document, rows

    loaded, _ = load(cli, file, sets)
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


def check(
    cli: Cli,
    file: RunFile = None,
    sets: Sets = None,
    tools: Annotated[bool, typer.Option("--tools", help="Also start the tool servers, and call their tools.")] = False,
) -> ExitCode:
    """Check a run file, and the model, data and programs that it names."""
    from agentrl.cli import output, tool_preflight
    from agentrl.config.show import advice

    loaded, chosen_sets = load(cli, file, sets)
    advised = [*advice(loaded), *check_inputs(loaded, chosen_sets)]
    if tools:
        called = tool_preflight.tried(cli, loaded, installed=False)
        called.refuse_failures("`agentrl check` looks closer at tools of a Python file.")
        advised += called.notes
    units = sum(loaded.config.sizes.values())
    if cli.json:
        document = {"name": loaded.config.name, "file": str(loaded.path or ""), "units": units, "valid": True}
        output.emit({**document, "extends": loaded.config.extends, "advice": advised})
    else:
        for line in advised:
            output.note(line)
        more = "" if loaded.config.groups else f" {nothing_to_bring_up(loaded)}"
        whole = f", with what it extends ({loaded.config.extends})," if loaded.config.extends else ":"
        what = f"the run {loaded.config.name} with {counted(units, 'units')}"
        output.say(f"{loaded.path}{whole} {what} is valid.{more}")
    return ExitCode.OK


def check_inputs(loaded: Loaded, sets: Sequence[str]) -> list[str]:
    """Warnings about model, datasets, database, code and programs. Raises ConfigError with everything that a unit would
    refuse."""
    from agentrl.config import file_checks, tool_lock
    from agentrl.config.validation_errors import combine_errors

    problems = list(file_checks.problems_of(loaded.config))
    if loaded.path is not None:
        problems += tool_lock.problems_of(loaded.config, loaded.path)
    config = loaded.config
    reads = bool(config.environments) or config.is_job or config.mongo.url is not None
    checks = _read_inputs(loaded, sets) if reads else []
    problems += [ConfigError(each["sentence"], hint=each["hint"]) for each in checks if each["verdict"] == "fail"]
    if problems:
        raise combine_errors(problems)
    return [f"{each['sentence']} {each['hint']}" for each in checks if each["verdict"] == "warn"]


def _read_inputs(loaded: Loaded, sets: Sequence[str]) -> list[dict[str, str]]:
    """The findings of a program that reads model and datasets, and checks the database."""
    import subprocess

    import msgspec

    # Another program reads them, because the command line imports nothing that can read them.
    command = [sys.executable, "-m", "agentrl.doctor", "--json", "--inputs", *(f"--set={one}" for one in sets)]
    # The program has its own session, because Ctrl-C is meant for this command.
    done = subprocess.run(
        [*command, "--", str(loaded.path)], stdout=subprocess.PIPE, check=False, start_new_session=True
    )
    try:
        return msgspec.json.decode(done.stdout, type=list[dict[str, str]])
    except msgspec.DecodeError:
        raise OperationFailedError(
            f"Model, data and database could not be read: the program that does so ended with {done.returncode}.",
            hint="Its output is above; `agentrl doctor` looks for what is missing.",
        ) from None


def nothing_to_bring_up(loaded: Loaded) -> str:
    """The hint for a run without groups."""
    if loaded.config.is_job:
        return f"Nothing of it is brought up: `agentrl train {shlex.quote(str(loaded.path))}` trains it."
    return "Nothing of it is brought up: it has neither `environments` nor `sidecars`."


def schema(cli: Cli) -> ExitCode:
    """Print the JSON schema of run files, for editors."""
    from agentrl.cli import output
    from agentrl.config.serialization import json_schema

    output.emit(json_schema())
    return ExitCode.OK
