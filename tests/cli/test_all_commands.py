"""Checks of all commands together: the table of commands, the shared options, and mistyped command lines."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentrl.cli.app import app, run
from agentrl.cli.list_pages import EXAMPLES
from agentrl.errors import ExitCode
from agentrl.filters.fields import SANDBOXES
from agentrl.filters.parser import parse
from agentrl.filters.sorting import parse_sort
from agentrl.protocol import grammar
from agentrl.protocol.commands import COMMANDS
from agentrl.queries import dispatcher
from agentrl.queries.record_verbs import VERBS as VERBS_OF_RECORDS
from agentrl.store.lists import FIELDS

ROOT = Path(__file__).parents[2]
TREE: Any = typer.main.get_command(app)


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    else:
        for name, child in below.items():
            yield from walk(child, (*path, name))


VERBS = dict(walk(TREE))


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("-")}


@pytest.mark.parametrize("spec", COMMANDS.values(), ids=lambda spec: spec.name)
def test_every_entry_of_the_table_has_its_command(spec: Any) -> None:
    words = spec.cli.split()
    verb = tuple(word for word in words if not word.startswith("-"))
    flags = {word for word in words if word.startswith("-")}

    assert verb in VERBS, f"there is no verb `agentrl {spec.cli}`"
    assert flags <= options_of(VERBS[verb])
    if spec.mutates:
        assert {"--yes", "--dry-run", "--no-wait", "--timeout"} <= options_of(VERBS[verb])


@pytest.mark.parametrize("syntax", grammar.syntaxes().values(), ids=lambda syntax: syntax.command)
def test_shell_takes_every_word_of_the_grammar(syntax: grammar.Syntax) -> None:
    command = VERBS[syntax.verb]
    own = {name for slot in syntax.options for name in slot.names}
    shared = {*grammar.SHARED, *(grammar.ACTING if syntax.mutates else ())}
    assert own | shared <= options_of(command)
    taken = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    assert len(taken) >= len(syntax.arguments)
    for slot, parameter in zip(syntax.arguments, taken, strict=False):
        assert (parameter.nargs == -1) == slot.many
        assert not parameter.required or slot.required


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_command_has_the_shared_options_and_help(verb: tuple[str, ...], capsys: Any) -> None:
    command = VERBS[verb]
    assert {"--run", "--key", "--json", "--no-color"} <= options_of(command)
    assert run([*verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: agentrl {' '.join(verb)}")
    assert command.hidden or (command.help or "").strip().endswith("."), "the help of a verb is a sentence"
    assert not re.search(r"<(int|float)|[<>]=", shown), "help describes types and ranges in words"


def groups(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if (below := getattr(command, "commands", None)) is not None:
        yield path, below
        for name, child in below.items():
            yield from groups(child, (*path, name))


@pytest.mark.parametrize(("path", "below"), list(groups(TREE)))
def test_no_help_sentence_is_cut_in_a_list_of_commands(
    path: tuple[str, ...], below: dict[str, Any], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*path, "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    shown = dict(line.strip().split(maxsplit=1) for line in listed)
    assert sorted(shown) == sorted(name for name, child in below.items() if not child.hidden)
    cut = {name: sentence for name, sentence in shown.items() if "..." in sentence or not sentence.endswith(".")}
    assert not cut


def test_all_words_after_the_role_go_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    own = ["--run", "2b1c", "--key", "b.key", "--name", "b", "--json", "--help", "--", "x"]
    run(["daemon", "host", *own])
    assert started == [[sys.executable, "-m", "daemons.host", *own]]


def test_former_name_of_playback_works_with_a_notice(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command[3:]))
    run(["tui", "--playback", "@demo"])
    assert not capsys.readouterr().err
    run(["tui", "--replay", "@demo"])
    assert capsys.readouterr().err == "--replay is called --playback now; the next release has no --replay.\n"
    assert started == [["--playback=@demo", "--at=", "--speed=1"]] * 2


def test_exit_codes_are_distinct_and_have_names() -> None:
    assert len({int(code) for code in ExitCode}) == len(list(ExitCode))


@pytest.mark.parametrize(
    ("typed", "meant"), [("stauts", "status"), ("dwon", "down"), ("sclae", "scale"), ("completon", "completion")]
)
def test_mistyped_command_gets_the_nearest_name(typed: str, meant: str, capsys: Any) -> None:
    assert run([typed]) == ExitCode.USAGE
    result = capsys.readouterr()
    assert meant in result.err
    assert not result.out


def test_usage_error_is_one_document_on_stdout_with_json(capsys: Any) -> None:
    assert run(["scale", "web", "many", "--json"]) == ExitCode.USAGE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == 2
    assert error["name"] == "usage"
    assert "'many'" in error["message"]
    assert error["hint"]


# These commands execute another program, which would replace the test process here.
OTHER_PROGRAMS = {"daemon", "doctor", "mcp", "tui"}
WORDS = st.one_of(
    st.sampled_from(sorted({word for path in VERBS for word in path} - OTHER_PROGRAMS)),
    st.sampled_from(sorted({name for command in VERBS.values() for name in options_of(command)})),
    st.sampled_from(
        ["web-0", "web-0.7", "+1", "-1", "--", "-", "", "run", "0", "1e999", "a.b=c", "--set=x", "\x1b[2J", "[red]"]
    ),
    st.text(max_size=12),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(WORDS, max_size=6))
@example(arguments=["--json"])
@example(arguments=["logs", "\udcff"])
@example(arguments=["train", "\0"])
@example(arguments=["scale", "web", "--help"])
@example(arguments=["tune", "x", "-1", "--preview", "--undo"])
def test_no_command_line_ends_in_a_traceback(
    arguments: list[str], tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("AGENTRL_HOME", str(home))
    monkeypatch.delenv("AGENTRL_KEY", raising=False)
    monkeypatch.chdir(home)
    code = run(arguments)  # an exception that escapes fails the test
    assert code in set(ExitCode)
    result = capsys.readouterr()
    assert "\x1b" not in result.err + result.out
    if code == ExitCode.USAGE and "--json" not in arguments:
        assert result.err.startswith("agentrl: ")
    if "--json" in arguments and code != ExitCode.OK:
        assert json.loads(result.out)["error"]["code"] == code


def test_reference_has_every_command_and_exit_code() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    missing = [
        " ".join(verb) for verb, one in VERBS.items() if not one.hidden and f"agentrl {' '.join(verb)}" not in text
    ]
    assert not missing
    for code in set(ExitCode) - {ExitCode.TEMPORARY}:
        assert f"| {int(code)} | {code.name.lower()} |" in text


ROWS_OF = {
    **{COMMANDS[name].cli: kind for name, kind in dispatcher.LISTS.items()},
    COMMANDS["list_calls"].cli: "ToolCall",
    COMMANDS["tool_errors"].cli: "ToolCall",
    COMMANDS["export_records"].cli: "Record",
    **{COMMANDS[name].cli: "Record" for name in [*VERBS_OF_RECORDS, "list_reviews"]},
    COMMANDS["replay_calls"].cli: "ToolCall",
}


@pytest.mark.parametrize("verb", [verb for verb, one in VERBS.items() if "--filter" in options_of(one)], ids=" ".join)
def test_every_example_of_a_list_is_a_valid_command_line(verb: tuple[str, ...], capsys: Any) -> None:
    name = " ".join(verb)
    query, order = EXAMPLES[name]
    fields = SANDBOXES if name == "tools sandboxes" else FIELDS[ROWS_OF[name]]
    parse(query, fields)
    assert run([*verb, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Such as '{query}'." in shown
    if "--sort" in options_of(VERBS[verb]):
        assert parse_sort(order, fields)[0].field.name == order.partition(",")[0].removeprefix("-")
        assert f"Such as {order};" in shown


def test_every_example_belongs_to_a_command() -> None:
    assert {tuple(name.split()) for name in EXAMPLES} <= VERBS.keys()


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND_LINE = re.compile(r"^(?:\$ |    )(agentrl [^#\n|>]*)|`(agentrl [^`]*)`", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_a_page_has_existing_commands_and_options(page: Path) -> None:
    wrong = []
    for line in (first or second for first, second in COMMAND_LINE.findall(page.read_text())):
        command, path = TREE, [""]
        words = [word for word in line.split()[1:] if not word.startswith("'")]
        for word in words:
            if below := getattr(command, "commands", {}).get(word):
                command, path = below, [*path, word]
        if default := getattr(command, "default", ""):
            command = command.commands[default]
        options = {word.partition("=")[0].strip(",;.()'") for word in words if re.match("--?[a-z]", word)}
        if unknown := options - options_of(command) - options_of(TREE) - {"--help"}:
            wrong.append((line, unknown))
        if len(path) == 1 and words and re.fullmatch("[a-z]+", words[0]):
            wrong.append((line, {words[0]}))
    assert wrong == []
