"""The documentation names only files and commands that exist.

Invariants:
- Every relative link of a page leads to a file.
- Every command of a console example is one that the command line accepts, with all its options.
- Every path in code style that begins with a room exists, from the root of the repository or from `agentrl/`.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from agentrl.cli.app import app
from agentrl.telemetry import metric_table

CHECKOUT = Path(__file__).resolve().parents[2]
README, CHINESE = CHECKOUT / "README.md", CHECKOUT / "README.zh.md"
PAGES = [README, CHINESE, *sorted((CHECKOUT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CODE_PATH = re.compile(r"`([a-z_]+/[\w./]*[\w/])`")
ROOTS = (CHECKOUT, CHECKOUT / "agentrl")
# These are directories of a run as well as rooms of the code.
OF_A_RUN = ("runs/", "recordings/", "hosts/", "logs/")


CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[str]:
    """The lines after `$` that begin with `agentrl`, up to a pipe or a comment."""
    lines = [line for block in CONSOLE.findall(page.read_text()) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ agentrl ")]


def words_of(line: str) -> list[str]:
    words = shlex.split(line, comments=True)[1:]
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "&&", ";")]
    return words[: ends[0]] if ends else words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_an_example_is_understood(page: Path) -> None:
    for line in commands_of(page):
        command, name, words = typer.main.get_command(app), "agentrl", words_of(line)
        with contextlib.ExitStack() as contexts:
            while True:
                context = contexts.enter_context(command.make_context(name, list(words)))
                if not isinstance(command, TyperGroup):
                    break
                found = command.resolve_command(context, [*context._protected_args, *context.args])
                assert found[1] is not None, f"{line}: there is no such command"
                name, command, words = found[0] or "", found[1], found[2]


def begins_with_a_room(path: str) -> bool:
    return not path.startswith(OF_A_RUN) and any((root / path.split("/")[0]).is_dir() for root in ROOTS)


def in_repository(path: str) -> bool:
    return any((root / path).exists() for root in ROOTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = {path for path in CODE_PATH.findall(page.read_text()) if begins_with_a_room(path)}
    assert sorted(path for path in named if not in_repository(path)) == []


def test_both_readmes_show_the_same_commands() -> None:
    block = re.compile(r"^```.*?^```$|^    make [^\n]*$", re.MULTILINE | re.DOTALL)
    blocks = [block.findall(page.read_text()) for page in (README, CHINESE)]
    assert blocks[0] == blocks[1]
    assert len(blocks[0]) > 6


def test_the_page_of_metrics_shows_all_metrics() -> None:
    page, printed = CHECKOUT / "docs" / "questions" / "metrics.md", metric_table.tables()
    assert printed.count("\n") > 80
    assert page.read_text().endswith(printed), (
        "replace the tables with the output of `python -m agentrl.telemetry.metric_table`"
    )
