"""Defines the command `init`, which writes an environment to begin with.

Invariants:
- A file that is there is never changed.
"""

from __future__ import annotations

import keyword
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, RefusedError, UsageError

_FILES = {
    "environment.py.txt": "{name}.py",
    "tasks.jsonl.txt": "{name}.jsonl",
    "run.yaml.txt": "run.yaml",
    "test.py.txt": "test_{name}.py",
}
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
) -> ExitCode:
    """Write an environment to begin with.

    Its Python file, data, a run file, and a test.
    """
    from agentrl.cli import output

    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} is no name of an environment.", hint="Write a word of letters, digits and _.")
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
