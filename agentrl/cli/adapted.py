"""The names of environments in commands: files, or words for environments of other packages with their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.errors import UsageError

FileOrWord = Annotated[
    str,
    typer.Argument(
        metavar="FILE|WORD",
        help="A Python file with environments, a run file, or a word such as gymnasium:FrozenLake-v1.",
        show_default=False,
    ),
]
ModelName = Annotated[str, typer.Option("--model-name", metavar="NAME", help="Of a model at an address.")]
WithArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="KEY=VALUE",
        help="What the package's own constructor is given, such as is_slippery=false.",
        show_default=False,
    ),
]

WithPython = Annotated[
    Path | None,
    typer.Option("--python", metavar="FILE", help="The Python that has the package.", show_default=False),
]


def environment_of(word: str, arguments: list[str] | None, python: Path | None) -> dict[str, Any]:
    """The environment in the form of `environments` in a run file."""
    from agentrl.config.typed_paths import path_of

    found: dict[str, Any] = {"code": word}
    if given := parsed_arguments(arguments):
        found["arguments"] = given
    if python is not None:
        found["python"] = str(path_of(python).absolute())
    return found


def parsed_arguments(given: list[str] | None) -> dict[str, Any]:
    from agentrl.config.yaml_reader import read_value

    found: dict[str, Any] = {}
    for each in given or ():
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise UsageError(f"--with {each}: this is not KEY=VALUE.", hint="Try --with is_slippery=false.")
        found[key] = read_value(text, f"--with {key}")
    return found
