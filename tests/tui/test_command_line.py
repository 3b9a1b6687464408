"""Command lines in the console: typed lines, and lines that alerts suggest."""

from __future__ import annotations

import pytest

from agentrl.errors import AgentrlError
from agentrl.protocol import control_commands, data_changes, tool_commands
from agentrl.protocol.message_base import Args
from agentrl.protocol.rows import AlertRow, AlertState, GroupRow, KnobRow, Severity, UnitRow, UnitState
from tui.model.command_line import Destination, parse, parse_cure
from tui.model.mirror import Mirror
from tui.model.pending_commands import PendingCommand

ALERT = AlertRow("unit-fatal:web-0", "unit-fatal", "web-0", Severity.PAGE, AlertState.FIRING, "web-0 is fatal.", 1.0)


@pytest.fixture
def mirror() -> Mirror:
    made = Mirror("demo")
    made.put("group/web", GroupRow("web", "sidecar", desired=3, ready=3))
    made.put("unit/web-0", UnitRow("web-0", "web", "sidecar", UnitState.READY, incarnation=7))
    made.put("knob/pool.work_s", KnobRow("pool.work_s", "float", 1.0, value=1.0, revision=4, minimum=0.0, maximum=9.0))
    made.put(f"alert/{ALERT.id}", ALERT)
    return made


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("restart wbe-0", "web-0"),
        ("logs web0", "web-0"),
        ("scale wbe 2", "web"),
        ("tune pool.works 2", "pool.work_s"),
        ("restrat web-0", "restart"),
    ],
)
def test_misspelled_name_gets_the_nearest_name(mirror: Mirror, line: str, meant: str) -> None:
    with pytest.raises(AgentrlError, match=r"There is no|has no verb") as wrong:
        parse(line, mirror)
    assert f"Did you mean {meant}?" in wrong.value.hint
    with pytest.raises(AgentrlError) as nothing:
        parse("restart zzzzzz", mirror)
    assert not nothing.value.hint


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("scale web 5", control_commands.Scale("web", to=5, seen=3)),
        ("scale web +2", control_commands.Scale("web", to=5, seen=3)),
        ("agentrl scale web -1 --run demo", control_commands.Scale("web", to=2, seen=3)),
        ("restart web-0", control_commands.Restart("web-0", 7)),
        ("restart web-0.7 --now", control_commands.Restart("web-0", 7, now=True)),
        ("restart web", control_commands.Restart("web")),
        ("drain web-0", control_commands.DrainUnits("web-0", incarnation=7)),
        ("drain web-0 --cancel", control_commands.DrainUnits("web-0", incarnation=7, cancel=True)),
        ("drain --host far", control_commands.DrainUnits(host="far")),
        ("stop web-0", control_commands.Stop("web-0", 7)),
        ("agentrl rollback --to 160 --reason 'it collapsed'", data_changes.RollBack("160", "it collapsed")),
        ("rollback --to best --keep-knobs --reason x", data_changes.RollBack("best", "x", keep_knobs=True)),
        ("stop web-0 --force", control_commands.ForceStopped("web-0", 7)),
        ("pause", control_commands.Pause("run")),
        ("resume web", control_commands.Resume("web")),
        ("stacks web-0", control_commands.CollectStacks(("web-0",))),
        ("tune pool.work_s 2.5 --note 'too slow'", control_commands.Tune("pool.work_s", 2.5, 4, "too slow")),
        ("tune pool.work_s --undo", control_commands.UndoTune("pool.work_s", 4)),
        (f"alerts ack {ALERT.id}", control_commands.Acknowledge(ALERT.id)),
        (f"alerts silence {ALERT.id} --for 2h --why night", control_commands.Silence(ALERT.id, 7200.0, "night")),
        ("alerts test", control_commands.SendTestAlert()),
        ("down --now", control_commands.Down(now=True)),
        ("scale web 5 --seen 2", control_commands.Scale("web", to=5, seen=2)),
        ("tune pool.work_s 2.50 --seen 3", control_commands.Tune("pool.work_s", 2.5, 3)),
        ("hosts remove far", control_commands.RemoveHost("far")),
        ("records requeue --filter status=failed", data_changes.RequeueRecords(filter="status=failed")),
        ("records exclude --made-by engine-0", data_changes.ExcludeRecords(made_by="engine-0")),
        (
            "records cancel --made-by web-0 --since 15m --note stuck",
            data_changes.CancelRecords(filter="started_at>-15m", made_by="web-0", note="stuck"),
        ),
        ("review mark bad r-1 r-2 --note no", data_changes.ReviewRecords(("r-1", "r-2"), note="no", verdict="bad")),
        ("tasks requeue t-1 t-2", data_changes.RequeueTasks(("t-1", "t-2"))),
        ("replays stop 0a1b", data_changes.StopReplays(("0a1b",))),
        ("fork r-1/3 --times 4", data_changes.ForkRecords("r-1/3", times=4)),
        ("tools release r-1 --toolbox toolbox-0.4", tool_commands.ReleaseSession("r-1", "toolbox-0.4")),
    ],
)
def test_typed_line_becomes_the_same_command_as_in_a_shell(mirror: Mirror, line: str, args: Args) -> None:
    meaning = parse(line, mirror)
    assert isinstance(meaning, PendingCommand)
    assert meaning.args == args
    assert isinstance(args, meaning.spec.args)
    again = parse(meaning.typed(("--run", "demo")), mirror)
    assert isinstance(again, PendingCommand)
    assert again.args == args, "the line that is copied does the same"


@pytest.mark.parametrize(
    ("line", "look"),
    [
        ("agentrl logs web-0 --previous", Destination("logs", "web-0", -1)),
        ("logs web-0.3", Destination("logs", "web-0", 3)),
        ("status", Destination("overview")),
        ("why", Destination("why")),
        ("events --kind incident", Destination("events", "incident")),
        ("logs web-0 --grep 'is held out'", Destination("logs", "web-0", filter="is held out")),
        ("records", Destination("records")),
        ("records list --filter 'a=b' --sort -score", Destination("records", filter="a=b", sort="-score")),
        ("tasks list --filter status=dead", Destination("tasks", filter="status=dead")),
        ("records show shop/1#r1.s0.a0", Destination("record", "shop/1#r1.s0.a0")),
        ("tools sandboxes --server shop", Destination("tools", "shop")),
        ("tools show shop --run demo", Destination("tools", "shop")),
        ("tune", Destination("tuning")),
        ("tune pool.work_s", Destination("tuning", "pool.work_s")),
        ("alerts", Destination("alerts")),
    ],
)
def test_typed_line_that_only_reads_opens_its_view(mirror: Mirror, line: str, look: Destination) -> None:
    assert parse(line, mirror) == look


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "Nothing was typed"),
        ("frobnicate", "no verb 'frobnicate'"),
        ("restart nobody", "no unit named nobody"),
        ("restart web-0.6", "web-0.6 is gone: web-0 lives as web-0.7"),
        ("restart", "`restart` needs TARGET."),
        ("scale web many", "not a number of units"),
        ("scale web -9", "cannot have -6"),
        ("scale nobody 1", "no group named nobody"),
        ("tune pool.work_s 90", "must be a number from 0 to 9"),
        ("tune nothing 1", "no knob named nothing"),
        ("alerts ack nothing", "no alert 'nothing'"),
        ("restart 'web-0", "No closing quotation"),
        ("stop web-0 web-1", "`stop` has one argument too many: 'web-1'."),
        ("stop web-0 --hard", "`stop` has no option --hard."),
        ("records exclude rec-1 --made-by engine-0", "Name records, or find them by --filter and --made-by."),
        ("records exclude rec-1 --made-by", "--made-by needs a value: --made-by UNIT."),
        ("records requeue", "Name records, or find them by --filter or --made-by."),
        ("records mend rec-1", "There is no command `records mend`."),
        ("stop web-0 --yes", "--yes belongs to a shell."),
        ("stop web-0 -y", "--yes belongs to a shell."),
        ("status --json", "--json belongs to a shell."),
        ("pause --timeout 3", "--timeout belongs to a shell."),
        ("stop web-0 --run other", "This console shows the run demo, and not that of --run other."),
        ("stop web-0 --key other.key", "This console shows the run demo, and not that of --key other.key."),
        ("status --follow", "`status` has no option --follow."),
        ("why --dry-run", "`why` has no option --dry-run."),
        ("tasks list --sort -n", "The view of `tasks list` does not take --sort."),
        ("events --kind incident --kind knob", "The view of `events` does not take --kind."),
        ("alerts list --all", "The view of `alerts list` does not take --all."),
        ("versions list", "The console has no view for `versions list`."),
        ("logs web-0 --lines 3", "`logs` has no option --lines."),
        ("rollback --to best", "`rollback` needs --reason TEXT."),
        ("tools exec toolbox-0.1/a-1 -- ls", "does not show what a program in a sandbox writes"),
    ],
)
def test_line_that_cannot_be_parsed_is_refused_with_a_sentence(mirror: Mirror, line: str, said: str) -> None:
    with pytest.raises(AgentrlError) as error:
        parse(line, mirror)
    assert said in error.value.message


def test_dry_run_only_asks_for_a_preview(mirror: Mirror) -> None:
    meaning = parse("stop web-0 --dry-run", mirror)
    assert isinstance(meaning, PendingCommand)
    assert meaning.preview_only
    assert meaning.args == control_commands.Stop("web-0", 7)


def test_key_file_of_this_console_may_stand_in_a_line(mirror: Mirror) -> None:
    meaning = parse("agentrl stop web-0 --key a.key", mirror, ("--key", "a.key"))
    assert isinstance(meaning, PendingCommand)
    assert not meaning.preview_only


def test_only_the_suggested_command_of_an_alert_is_run(mirror: Mirror) -> None:
    def suggesting(line: str) -> AlertRow:
        return AlertRow("a", "r", "web-0", Severity.INFO, AlertState.FIRING, "It is so.", 1.0, suggest=line)

    found = parse_cure(suggesting("agentrl restart web-0"), mirror)
    assert isinstance(found, PendingCommand)
    assert found.args == control_commands.Restart("web-0", 7)
    assert parse_cure(suggesting("agentrl logs web-0 --previous"), mirror) == Destination("logs", "web-0", -1)
    assert parse_cure(suggesting("df -h /data"), mirror) is None
    assert parse_cure(suggesting(""), mirror) is None
