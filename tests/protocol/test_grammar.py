"""Commands as words: what is written is read as the same command, and nothing is read that is not understood whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.errors import UsageError
from agentrl.protocol import control_commands, data_changes, grammar, tool_commands
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.message_base import Args
from agentrl.protocol.words import Choice, Count, Incarnation, JsonObject, Number, Place, SettingValue, Whole

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.sampled_from(
    ["--note", "-e", "--", "-1", "+1", "a=b", "--now=1", "--undo", "--force", "--history"]
)
NAME = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3)
SYNTAXES = grammar.syntaxes()


def plain_text(text: str) -> bool:
    """Not a text that only the kind of the knob distinguishes from a number or a truth."""
    return isinstance(SettingValue().value(text), str)


def values_of(slot: grammar.Slot) -> st.SearchStrategy[Any]:
    match slot.form:
        case SettingValue():
            return st.booleans() | st.integers() | NUMBERS | TEXT.filter(plain_text)
        case JsonObject():
            return st.none() | JSON
        case Incarnation():
            return NAME if slot.required else NAME | st.just("")
        case Choice(choices=choices):
            return st.sampled_from(choices)
        case Whole() | Count():
            return st.integers(0, 10**9 - 1) | (st.none() if slot.default is None else st.nothing())
        case Number():
            return NUMBERS
    if slot.many:
        return st.lists(TEXT, min_size=int(slot.required), max_size=3).map(tuple)
    if slot.place is Place.FLAG:
        return st.booleans()
    return TEXT | st.none() if slot.default is None and not slot.required else TEXT


SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "by": st.none() | st.integers(-(10**9) + 1, 10**9 - 1),
    "incarnation": st.integers(0, 10**6),
    "since_canary": st.booleans(),
    "for_s": st.floats(0, 1e11),
    "server": NAME | st.just(""),
    "sandbox": st.just("") | NAME.map(lambda name: f"toolbox-0.4/{name}"),
}


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, Args]:
    """A command that a line can express, with any arguments that do not contradict each other."""
    syntax = draw(st.sampled_from(list(SYNTAXES.values())))
    values = {
        slot.field: draw(SPECIAL.get(slot.field, values_of(slot)))
        for slot in syntax.slots
        if slot.place is not Place.PROGRAM
    }
    args = syntax.args(**values)
    assume(not args.problem())
    # An incarnation belongs to a unit.
    assume(not getattr(args, "incarnation", 0) or getattr(args, "unit", "") or getattr(args, "target", ""))
    return syntax.command, args


@given(line=lines())
def test_words_of_any_command_are_read_as_the_same_command(line: tuple[str, Args]) -> None:
    command, args = line
    read = grammar.parse(grammar.words(command, args))
    assert (read.spec.name, read.args, read.shared) == (command, args, {})


def test_every_command_has_words_or_is_sent_by_programs_only() -> None:
    programs = {
        *("snapshot", "show_operation", "read_logs", "read_image", "record_tokens", "export_records", "preview_past"),
        *("list_tools", "tool_logs", "show_exec_output", "show_evaluation", "apply", "add_key"),
    }
    assert COMMANDS.keys() - SYNTAXES.keys() == programs
    with pytest.raises(UsageError, match="only a program sends it"):
        grammar.words("read_logs", control_commands.ReadLogs("web-0"))


@pytest.mark.parametrize(
    ("line", "command", "args"),
    [
        ("scale web +2", "scale", control_commands.Scale("web", by=2)),
        ("scale web -1 --seen 3", "scale", control_commands.Scale("web", by=-1, seen=3)),
        ("stop web-0.7 --now", "stop", control_commands.Stop("web-0", 7, now=True)),
        ("stop --force web-0", "force_stopped", control_commands.ForceStopped("web-0", 0)),
        ("pause", "pause", control_commands.Pause("run")),
        ("tune bound 2", "tune", control_commands.Tune("bound", 2)),
        ("tune bound --undo", "undo_tune", control_commands.UndoTune("bound")),
        ("tune bound", "knobs", control_commands.Knobs("bound")),
        ("tune bound --history", "knob_history", control_commands.KnobHistory("bound")),
        ("alerts silence a:b --for 2h", "silence", control_commands.Silence("a:b", 7200.0)),
        ("tasks add f.jsonl -e shop", "add_tasks", data_changes.AddTasks("shop", "f.jsonl")),
        ("records exclude --made-by=e-0", "exclude_records", data_changes.ExcludeRecords(made_by="e-0")),
        (
            "records cancel --since 2h --filter a=b",
            "cancel_records",
            data_changes.CancelRecords(filter="(a=b) and started_at>-2h"),
        ),
        ("records rescore --since 1w", "rescore_records", data_changes.RescoreRecords(filter="finished_at>-1w")),
        ("tools restart toolbox-0.1/shop-7", "restart_tool", tool_commands.RestartTool(sandbox="toolbox-0.1/shop-7")),
        (
            "tools exec toolbox-0.1/shop-7 --within 5 -- ls -l --note",
            "exec_in_sandbox",
            tool_commands.ExecInSandbox("toolbox-0.1/shop-7", ("ls", "-l", "--note"), 5.0),
        ),
    ],
)
def test_typed_line_is_the_command_that_a_shell_sends(line: str, command: str, args: Args) -> None:
    read = grammar.parse(line.split())
    assert (read.spec.name, read.args) == (command, args)


@pytest.mark.parametrize(
    ("line", "sentence", "hint"),
    [
        ("", "There is no command ''.", ""),
        ("sclae web 1", "There is no command 'sclae'.", "Did you mean scale?"),
        ("tasks", "There is no command `tasks`.", "`tasks` has add, list, requeue, show."),
        ("tasks requeu x", "There is no command `tasks requeu`.", "Did you mean requeue? `tasks` has"),
        ("stop web-0 --nwo", "`stop` has no option --nwo.", "Did you mean --now? It has --now."),
        ("stop web-0 web-1", "`stop` has one argument too many: 'web-1'.", "Write `stop UNIT [--now]`."),
        ("stop", "`stop` needs UNIT.", "Write `stop UNIT [--now]`."),
        ("stop web-0 --force --now", "`stop --force` has no option --now.", "It has --force."),
        ("stop web-0.x", "UNIT: 'web-0.x' is not an incarnation such as web-0.7.", "Write `stop"),
        ("scale web", "`scale` needs N|+1|-1.", "Write `scale ROLE N|+1|-1 [--seen N]`."),
        ("scale web many", "'many' is not a number of units.", "Write 4"),
        ("scale web 1 --seen x", "--seen: 'x' is not a whole number.", "Write `scale"),
        ("scale web 1 --seen", "--seen needs a value: --seen N.", "Write `scale"),
        ("scale web 1 --seen 1 --seen 2", "--seen is given twice.", "Give it once."),
        ("stop web-0 --now=yes", "--now takes no value.", "Write `stop"),
        ("records exclude", "Name records, or find them by --filter or --made-by.", "Write `records exclude"),
        ("records exclude r-1 --filter a=b", "Name records, or find them by --filter and --made-by.", "Write `"),
        ("records exclude --filter a=b --since never", "'never' is neither an age nor `canary`.", "Write 90s"),
        ("review mark fine r-1", "VERDICT: 'fine' is not one of good, bad, golden, none.", "Write `review mark"),
        ("replay c --edit []", "--edit: '[]' is not a JSON object.", "Write `replay"),
        ("rollback --to best", "`rollback` needs --reason TEXT.", "Write `rollback"),
        ("tune a b c", "`tune` has one argument too many: 'c'.", "Write `tune KNOB VALUE"),
        ("tasks requeue", "`tasks requeue` needs TASK.", "Write `tasks requeue TASK... [--note TEXT]`."),
    ],
)
def test_line_that_is_not_understood_whole_is_refused(line: str, sentence: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        grammar.parse(line.split())
    assert refused.value.message == sentence
    assert hint in refused.value.hint


@given(line=lines(), surplus=st.sampled_from(["--of-tomorrow", "-z"]))
def test_unknown_option_is_refused_in_every_command(line: tuple[str, Args], surplus: str) -> None:
    written: Sequence[str] = grammar.words(*line)
    verb = len(SYNTAXES[line[0]].verb)
    with pytest.raises(UsageError, match=f"has no option {surplus}"):
        grammar.parse((*written[:verb], surplus, *written[verb:]))


def test_options_of_a_shell_are_kept_apart() -> None:
    read = grammar.parse(["stop", "web-0", "--yes", "--run", "demo", "--timeout=3"])
    assert (read.args, read.shared) == (
        control_commands.Stop("web-0"),
        {"--yes": "", "--run": "demo", "--timeout": "3"},
    )
    with pytest.raises(UsageError, match="`status` has no option --yes"):
        grammar.parse(["status", "--yes"])


@pytest.mark.parametrize(("typed", "to", "by"), [("0", 0, None), ("12", 12, None), ("+1", None, 1), ("-3", None, -3)])
def test_count_of_units_is_a_number_or_a_difference(typed: str, to: int | None, by: int | None) -> None:
    assert grammar.parse(["scale", "web", typed]).args == control_commands.Scale("web", to=to, by=by)


@pytest.mark.parametrize("typed", ["", "+", "-", "1.5", "one", "1_0", "٣", "99999999999"])
def test_invalid_count_of_units_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="is not a number of units"):
        grammar.parse(["scale", "web", typed])
