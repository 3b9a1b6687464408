"""Defines the command `init`, which writes a first environment.

Invariants:
- An existing file is never changed.
"""

from __future__ import annotations

import keyword
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.adapters.sources import KINDS, source_of
from agentrl.cli.adapted import WithArguments, WithPython, environment_of
from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, RefusedError, UsageError

_FILES = {
    "environment.py.txt": "{name}.py",
    "tasks.jsonl.txt": "{name}.jsonl",
    "demonstrations.jsonl.txt": "{name}_shown.jsonl",
    "run.yaml.txt": "run.yaml",
    "test.py.txt": "test_{name}.py",
}
_RUN_FILE = """\
name: {name}
model: {{build: tiny}}          # or path: a directory in the layout of Hugging Face
environments:
  {name}: {environment}
sampling: {{n: 8, max_tokens: 64, context: 1024}}
training: {{steps: 10, groups: 2}}
"""
_OWN = "quiz"
"""The name in the templates."""


def register(app: typer.Typer) -> None:
    add_command(app, "init")(init)


def init(
    cli: Cli,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the environment; a word.", show_default=False)],
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the files are written.", show_default=False)
    ] = Path(),
    word: Annotated[
        str,
        typer.Option("--from", metavar="WORD", help="Of another package: gymnasium:FrozenLake-v1.", show_default=False),
    ] = "",
    arguments: WithArguments = None,
    python: WithPython = None,
) -> ExitCode:
    """Write an environment to begin with.

    Its Python file, data, demonstrations, a run file, and a test; a run file only with --from.
    """
    from agentrl.cli import output

    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} is no name of an environment.", hint="Write a word of letters, digits and _.")
    if word:
        return _of_another_package(cli, name, directory, word, environment_of(word, arguments, python))
    if arguments or python is not None:
        option = "--with" if arguments else "--python"
        raise UsageError(f"{option} is for an environment of another package: --from WORD.")
    places = {template: directory / place.format(name=name) for template, place in _FILES.items()}
    if there := [str(place) for place in places.values() if place.exists()]:
        raise RefusedError(f"There is {', '.join(there)} already.", hint="Take another name, or --dir DIR.")
    directory.mkdir(parents=True, exist_ok=True)
    templates = resources.files("agentrl.environments") / "example"
    for template, place in places.items():
        place.write_text((templates / template).read_text().replace(_OWN, name))
    if cli.json:
        output.emit({"written": [str(place) for place in places.values()]})
    else:
        output.say(f"Wrote {', '.join(map(str, places.values()))}.")
        output.say(f"Try it: agentrl try {places['environment.py.txt']} --say '<answer>7</answer>'")
    return ExitCode.OK


def _of_another_package(cli: Cli, name: str, directory: Path, word: str, environment: dict[str, Any]) -> ExitCode:
    """A run file that names an environment of another package."""
    import json

    from agentrl.cli import output

    if source_of(word) is None:
        raise UsageError(f"--from {word}: there is no such kind.", hint=f"Kinds are {', '.join(KINDS)}.")
    place = directory / "run.yaml"
    if place.exists():
        raise RefusedError(f"There is {place} already.", hint="Take --dir DIR.")
    directory.mkdir(parents=True, exist_ok=True)
    place.write_text(_RUN_FILE.format(name=name, environment=json.dumps(environment)))
    if cli.json:
        output.emit({"written": [str(place)]})
    else:
        output.say(f"Wrote {place}.")
        output.say(f"Try it: agentrl try {place}")
    return ExitCode.OK
