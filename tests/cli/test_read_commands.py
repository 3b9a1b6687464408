"""Commands that only read: logs, events, alerts, why, runs; and the error without a coordinator."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ExitCode, UnknownNameError, UsageError
from agentrl.filters.fields import TOOL_CALLS
from agentrl.filters.parser import parse
from agentrl.formatting.log_lines import Choice, Lines, time_of
from agentrl.protocol import rows
from agentrl.protocol.control_commands import ReadLogs, WaitChain, WaitLink, WhyReport
from agentrl.protocol.data_commands import (
    BoundPreview,
    ExportPart,
    Page,
    RecordStory,
    StalenessReport,
    ToolErrorGroup,
)
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import LogChunk
from agentrl.protocol.other_model_commands import OtherModelsReport, ServiceRow
from tests.cli.conftest import PROGRAM, CommandResult, Shell
from tests.cli.scripted import Scripted
from tests.tui.steward_answers import RECORD, call_story, evaluation_rows
from tests.waiting import PATIENCE_S

HOSTILE = "\x1b]0;owned\x07[red]"


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n\r")), min_size=1), st.data())
def test_lines_are_complete_for_any_chunks(lines: list[str], data: st.DataObject) -> None:
    body = "\n".join(lines).encode(errors="replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    joined, found = Lines(), []
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        found += joined.feed(body[start:end])
    found += joined.end()
    expected = [line.encode(errors="replace").decode() for line in lines]
    assert found == (expected if expected[-1] else expected[:-1])


def test_since_keeps_lines_without_a_time_after_a_matching_line() -> None:
    old, new = "2026-01-01T00:00:00Z old", "2026-01-02 00:00:00,5 +0000 new"
    since = time_of(new)
    assert since is not None
    choice = Choice("", since)
    kept = [line for line in ("begin", old, "  of old", new, "  of new") if choice(line)]
    assert kept == ["begin", new, "  of new"]
    assert choice.saw_time


def test_invalid_pattern_is_refused() -> None:
    with pytest.raises(UsageError, match="--grep"):
        Choice("(", None)


class Logs:
    """Logs of web-0: one body per incarnation."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = list(bodies)
        self.rotation = 0

    def __call__(self, args: Args) -> LogChunk:
        assert isinstance(args, ReadLogs)
        if args.unit != "web-0":
            raise UnknownNameError(f"There is no unit {args.unit}.")
        number = args.incarnation if args.incarnation > 0 else len(self.bodies) + args.incarnation
        body = self.bodies[number - 1]
        offset = max(0, len(body) + args.offset) if args.offset < 0 else min(args.offset, len(body))
        data = body[offset : offset + min(args.limit, 16)]
        return LogChunk(args.unit, number, offset, data, len(body), self.rotation)


def test_logs_are_printed_filtered_and_as_json(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["read_logs"] = Logs(b"before\n", b"first line\nsecond is longer\nthird\nno end")
    assert shell("logs", "web-0").out.splitlines() == ["first line", "second is longer", "third", "no end"]
    assert shell("logs", "web-0", "-n", "1").out == "no end\n"
    assert shell("logs", "web-0", "--previous").out == "before\n"
    assert shell("logs", "web-0.1").out == "before\n"
    assert shell("logs", "web-0", "--grep", "^s|th").out.splitlines() == ["second is longer", "third"]
    assert "no time" in shell("logs", "web-0", "--since", "1h").err
    assert shell("logs", "web-0", "--json").json["lines"][-1] == "no end"
    assert "no unit web-9" in shell("logs", "web-9", expect=ExitCode.UNKNOWN).err
    shell("logs", "web-0", "-f", "-p", expect=ExitCode.USAGE)


def test_empty_log_is_explained(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["read_logs"] = Logs(b"first line\n", b"")
    result = shell("logs", "web-0")
    assert (result.out, result.err) == ("", "web-0.2 has written nothing yet.\n")
    result = shell("logs", "web-0.1", "--grep", "second")
    assert (result.out, result.err) == ("", "No line of web-0.1 matches.\n")
    assert shell("logs", "web-0", "--json").err == ""


def test_logs_follow_over_a_rotation_and_a_new_incarnation(
    shell: Shell, coordinator: Scripted, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    logs = Logs(b"one\n")
    coordinator.answers["read_logs"] = logs
    process = shell.start("logs", "web-0", "-f", "--json")
    assert process.stdout is not None
    read = process.stdout.readline

    def following() -> tuple[int, str]:
        line = json.loads(read())
        return line["incarnation"], line["line"]

    assert json.loads(read())["lines"] == ["one"]
    logs.bodies[0] += b"two is cut in "
    logs.bodies[0] += b"parts\n"
    assert following() == (1, "two is cut in parts")
    logs.rotation, logs.bodies[0] = 1, b"after the cut\n"
    assert following() == (1, "after the cut")
    logs.bodies[0] += b"last words"
    logs.bodies.append(b"a new life\n")
    assert following() == (1, "last words")
    assert following() == (2, "a new life")
    result = interrupted(process)
    assert result.code == ExitCode.INTERRUPTED
    assert "was cut" in result.err
    assert "web-0.1 ended" in result.err


def incident(number: int, at: float) -> rows.IncidentRow:
    return rows.IncidentRow(
        f"i{number}", "web-0", number, at, f"died {HOSTILE}", exit=rows.ExitStatus(signal=9), tail=("last", HOSTILE)
    )


def test_events_are_sorted_and_show_the_evidence(shell: Shell, coordinator: Scripted) -> None:
    now = time.time()
    found = [incident(2, now), rows.AuditRow(1, now - 60, "ann", "scale", "web 2 → 3"), incident(1, now - 120)]
    coordinator.answers["events"] = lambda args: found
    result = shell("events").out
    assert result.index("web-0.1") < result.index("2 → 3") < result.index("web-0.2 [signal 9]")
    assert "| last" in result
    assert "\x1b" not in result
    assert [row["type"] for row in shell("events", "--json").json] == ["incident", "audit", "incident"]
    shell("events", "--kind", "rumour", expect=ExitCode.USAGE)


def test_rows_of_one_operation_are_one_event(shell: Shell, coordinator: Scripted) -> None:
    id, now = "0123456789abcdef0123456789abcdef", time.time()
    done = rows.OperationRow(id, "tune", "tune: x: 1 -> 2", "ann", rows.OperationState.SUCCEEDED, now)
    audit = rows.AuditRow(1, now, "ann", "tune", "tune: x: 1 -> 2", operation=id, note="why not")
    coordinator.answers["events"] = lambda args: [done, audit]
    result = shell("events").out
    assert result.count("\n") == 1
    assert "01234567  tune: x: 1 -> 2 (why not), by ann: succeeded" in result
    assert id not in result
    assert len(shell("events", "--json").json) == 2

    wanted: list[int] = []
    coordinator.answers["events"] = lambda args: wanted.append(args.limit) or [done, audit]
    assert len(shell("events", "--limit", "1").out.splitlines()) == 1
    assert wanted == [3], "as many lines as are wanted, whatever is folded"


def test_events_are_followed_by_the_feed(
    shell: Shell, coordinator: Scripted, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    now = time.time()
    coordinator.rows["incident/i0"] = incident(0, now - 9999)
    coordinator.answers["events"] = lambda args: [incident(1, now)]
    process = shell.start("events", "-f", "--kind", "incident", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["id"] == "i1"
    coordinator.publish("incident/i1", incident(1, now))
    coordinator.publish("incident/i2", incident(2, now + 1))
    assert json.loads(process.stdout.readline())["id"] == "i2", "neither the old one nor the same one twice"
    assert interrupted(process).code == ExitCode.INTERRUPTED


def test_alerts_show_evidence_and_the_suggested_command(shell: Shell, coordinator: Scripted) -> None:
    row = rows.AlertRow(
        "m:web-0", "m", "web-0", rows.Severity.WARNING, rows.AlertState.FIRING, "memory grows", time.time() - 630,
        evidence=("2 GiB/h", HOSTILE), suggest="agentrl restart web-0",
    )  # fmt: skip
    coordinator.answers["alerts"] = lambda args: [row]
    result = shell("alerts", "list").out
    for needed in ("memory grows", "2 GiB/h", "agentrl restart web-0", "10 min"):
        assert needed in result
    assert "\x1b" not in result
    gone = msgspec.structs.replace(row, state=rows.AlertState.RESOLVED, passed=True)
    coordinator.answers["alerts"] = lambda args: [gone] if args.all else []
    assert shell("alerts", "list").out == "No alert.\n"
    assert "went away before it fired" in shell("alerts", "list", "--all").out
    shell("alerts", "silence", "m", "--for", "2h", "--why", "known")
    (silence,) = coordinator.sent("silence")
    assert (silence.id, silence.for_s, silence.why) == ("m", 7200, "known")  # type: ignore[attr-defined]


def test_why_prints_chain_ages_and_cause(shell: Shell, coordinator: Scripted) -> None:
    assert "No unit waits" in (coordinator.answers.update(why=lambda args: WhyReport()) or shell("why").out)
    links = (WaitLink("a-0", "b-0", "a page", 312.0), WaitLink("b-0", "c-0", "", 300.0, overdue=True))
    chain = WaitChain(links, "c-0", "it hangs", "a-0 ← b-0 ← c-0, 312 s")
    coordinator.answers["why"] = lambda args: WhyReport((chain,))
    result = shell("why").out
    assert "a-0 ← b-0 ← c-0, 312 s" in result
    assert "culprit: c-0: it hangs" in result
    assert "overdue" in result
    assert shell("why", "--json").json["chains"][0]["culprit"] == "c-0"


def test_why_shows_the_oldest_of_many_waits_of_one_unit(shell: Shell, coordinator: Scripted) -> None:
    many = tuple(WaitLink("a-0", "b-0", f"record {n}", 20.0 - n, overdue=n < 4) for n in range(20))
    links = (*many, WaitLink("c-0", "page", "page", 1.0))
    coordinator.answers["why"] = lambda args: WhyReport((WaitChain(links, "b-0", "it hangs", "a-0 ← b-0, 20 s"),))
    assert shell("why").out.splitlines()[1:-1] == [
        "    a-0 waits for b-0 (record 0), 20 s, overdue",
        "    a-0 waits for b-0 (record 1), 19 s, overdue",
        "    a-0 has 18 more such waits, 2 of them overdue",
        "    c-0 waits for page, 1 s",
    ]
    assert len(shell("why", "--json").json["chains"][0]["links"]) == 21


def test_why_names_no_cause_for_a_working_unit(shell: Shell, coordinator: Scripted) -> None:
    nothing = WaitChain((WaitLink("a-0", "b-0", "work", 0.2),), "b-0", "is at work", "a-0 ← b-0, 0 s", amiss=False)
    coordinator.answers["why"] = lambda args: WhyReport((nothing,))
    assert shell("why").out.strip() == "No unit waits."
    work = WaitChain((WaitLink("t-0", "batch", "", 9.0),), "batch", "is at work", "t-0 ← batch, 9 s", amiss=False)
    coordinator.answers["why"] = lambda args: WhyReport((nothing, work))
    assert shell("why").out.splitlines() == [
        "No unit waits longer than it should: what it waits for is in progress.",
        "t-0 ← batch, 9 s",
        "    t-0 waits for batch, 9 s",
        "    ends at: batch: is at work",
    ]


def test_equal_last_lines_of_an_incident_are_shown_once(shell: Shell, coordinator: Scripted) -> None:
    tail = (*(f"call {n} failed" for n in range(13)), "the disk is full")
    incident = rows.IncidentRow("i1", "web-0", 1, time.time(), "web-0 died", tail=tail)
    coordinator.answers["events"] = lambda args: [incident]
    lines = [line.partition("| ")[2] for line in shell("events").out.splitlines()[1:]]
    assert lines == ["×13 call 12 failed", "the disk is full"]
    assert len(shell("events", "--json").json[0]["tail"]) == 14


@pytest.mark.parametrize("width", ["80", ""])
def test_list_in_a_pipe_has_a_line_for_each_row(shell: Shell, coordinator: Scripted, width: str) -> None:
    """Programs parse the lines, so no cell and no heading may be cut."""
    long = {"id": "shop/train/0/000012#r1.s3.a1/t2.0", "server": "shop", "tool": "lookup", "status": "lost"}
    row = long | {"error_class": "infrastructure", "owner": "sampler-0.1", "latency_s": 1.5, "result": "away " * 60}
    coordinator.answers["list_calls"] = lambda args: Page(rows=(row, row | {"result": "gone"}))
    heading, *lines = shell("calls", COLUMNS=width).out.splitlines()
    if width:
        assert len(heading) <= 80
        return
    assert heading.split() == ["call", "tool", "status", "whose", "unit", "took", "what"]
    assert len(lines) == 2
    assert lines[0].endswith("away away")
    assert lines[1].endswith("  gone"), "no blanks are left at its end"
    report = StalenessReport(
        bound=1,
        version=9,
        ready={0: 8},
        previews=(BoundPreview(0, 1, 1), BoundPreview(1, 0, 0)),
        counted_at=time.time(),
    )
    coordinator.answers["staleness"] = lambda args: report
    for told in (shell("staleness", COLUMNS=width).out, shell("staleness", COLUMNS="80").out):
        where, heading, *lines = told.splitlines()
        assert where.startswith("The bound is 1 publication; version 9 is the newest; counted at ")
        assert " ".join(heading.split()) == "age ready under way would lose ready and under way"
        assert len(lines) == 2
    call = {
        "at": time.time(),
        "model": "judge",
        "purpose": "judge right",
        "outcome": "away",
        "tries": 3,
        "record": "r1",
    }
    used = {"model": "judge", "purpose": "judge right", "calls": 5, "kept": 2, "unanswered": 1, "tries": 7}
    used |= {"tokens_in": 900, "tokens_out": 40, "cost": 0.25, "latency_s": None}
    away = {
        "failing_at": ("sampler-0",),
        "failures": 3,
        "error": "status 500",
        "failed_at": 995.0,
        "rests_until": 1012.0,
    }
    asked = ServiceRow("judge", 1, "m at h", per_minute=60, this_minute=42, at_once=16, timeout_s=60.0, **away)
    failed = call | {"record": "r1", "latency_s": 2.0, "error": "m at h: status 500"}
    done = OtherModelsReport((used,), (failed,), (asked,), counted_at=1000.0)
    coordinator.answers["other_models"] = lambda args: done
    heading, sums, _, service, *lines = shell("models", COLUMNS="160").out.splitlines()
    words = " ".join(service.split())
    assert words.startswith("judge 1. m at h rests 12 s 42 of 60 a minute, 16 at once, 60 s ")
    assert words.endswith(" 3 times in a row, 5 s ago at sampler-0: status 500")
    assert sums.split()[:3] == ["judge", "judge", "right"]
    assert sums.split()[3:9] == ["5", "2", "1", "7", "900", "40"]
    assert lines[0].endswith("judge: judge right, away, 3 tries, 2.0 s, for r1: m at h: status 500")


def test_evaluations_of_the_run_are_listed_shown_and_compared(shell: Shell, coordinator: Scripted) -> None:
    evaluation_rows(coordinator)
    wide = {"COLUMNS": "200"}
    listed = shell("eval", "list", **wide).out
    assert "40 of 64 tasks" in listed
    assert "best, checkpoint step-190" in listed
    assert "0.790 of 4" in listed
    assert {row["part"] for row in shell("eval", "show", "v19", "--by", "tag", "--json").json} == {"bread", "fruit"}
    assert "shop: v19 is not shown to differ: +0.273" in shell("eval", "compare", "v18", "v19").out


@pytest.mark.parametrize("file", ["/dev/full", "-"], ids=["file", "stdout"])
def test_records_that_a_full_disk_did_not_take_are_not_counted(shell: Shell, coordinator: Scripted, file: str) -> None:
    coordinator.answers["export_records"] = lambda args: ExportPart(b'{"a":1}\n', "last", records=1, end=True)
    words = ["records", "export", *(["-o", file] if file != "-" else [])]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, *words], env=shell.env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == ExitCode.DISK
    assert done.stderr.strip() == "agentrl: No space left on device."


READING = [["status"], ["why"], ["alerts", "list"], ["events"], ["tune"], ["logs", "web-0"], ["scale", "web", "2"]]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_missing_coordinator_is_reported_in_one_sentence(shell: Shell, arguments: list[str]) -> None:
    result = shell(*arguments, expect=ExitCode.NO_COORDINATOR)
    assert result.err.startswith("agentrl: No run is up")
    assert "agentrl up" in result.err
    assert not result.out
    error = shell(*arguments, "--json", expect=ExitCode.NO_COORDINATOR).json["error"]
    assert error["name"] == "no_coordinator"


def test_name_is_required_with_two_runs(shell: Shell, coordinator: Scripted) -> None:
    with Scripted(shell.home, "other"):
        result = shell("status", expect=ExitCode.USAGE)
        assert "demo" in result.err
        assert "other" in result.err
        shell("status", "--run", "demo")
        shell("--run", "demo", "status")
        shell("status", AGENTRL_RUN_NAME="other")
    shell("status", "--run", "ohter", expect=ExitCode.UNKNOWN)


def test_runs_lists_all_runs(shell: Shell, coordinator: Scripted) -> None:
    (row,) = shell("runs", "--json").json
    assert (row["name"], row["up"]) == ("demo", True)
    assert "demo" in shell("runs").out


@pytest.mark.parametrize("width", [24, 30, 40, 300])
def test_list_of_runs_is_never_cut(shell: Shell, coordinator: Scripted, width: int) -> None:
    heading, *lines = shell("runs", "list", COLUMNS=f"{width}").out.splitlines()
    assert heading.split()[:2] == ["run", "state"]
    assert all(len(line) <= width for line in lines)
    assert "/runs/demo" in "".join(line[heading.index("directory") :].strip() for line in lines)


def test_closed_pipe_is_no_error(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["read_logs"] = lambda args: LogChunk("web-0", 1, 0, b"x" * 99 + b"\n", 100)
    coordinator.answers["events"] = lambda args: [incident(number, 1.0) for number in range(5000)]
    process = shell.start("events", "--json")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 0


def test_record_has_the_messages_of_its_loop(coordinator: Scripted, shell: Shell) -> None:
    record = {"id": "r", "status": "scored", "turns": 1, "generated_tokens": 2}
    turn: dict[str, object] = {"index": 1, "text": "yes", "reason": "", "call": {}, "parsed": [], "tool_calls": []}
    turn["from_loop"] = [{"role": "user", "text": "Are you\x07 sure?"}]
    coordinator.answers["show_record"] = lambda _: RecordStory(
        record, {"query": "what?"}, {"sentence": "answered"}, turns=(turn,)
    )
    said = shell("records", "show", "r")
    assert "  from the agent loop (user): Are you sure?" in said.out
    assert said.out.index("Are you") < said.out.index("turn 1")


@pytest.mark.parametrize(
    ("options", "filter", "error"),
    [
        ((), "", ""),
        (("--failed",), "failed=true", ""),
        (("--tool", "shop.lookup"), 'server="shop" and tool="lookup"', ""),
        (("--tool", "lookup", "--since", "2h"), 'tool="lookup" and requested_at>-2h', ""),
        (("--record", "r#1", "--filter", "turn=1 or turn=2"), 'record="r#1" and (turn=1 or turn=2)', ""),
        (("--error", "took # s", "--filter", "tool=find"), "tool=find", "took # s"),
    ],
)
def test_options_of_calls_are_a_filter(
    shell: Shell, coordinator: Scripted, options: tuple[str, ...], filter: str, error: str
) -> None:
    sent: list[Any] = []
    coordinator.answers["list_calls"] = lambda args: (sent.append(args), Page())[1]
    assert shell("calls", *options).err == "Nothing was found.\n"
    assert (sent[-1].filter, sent[-1].error) == (filter, error)
    parse(filter, TOOL_CALLS)
    shell("calls", "list", *options)
    assert sent[-1] == sent[0], "list is the command without a name"


def test_call_is_shown_with_its_turn_its_record_and_its_place_in_the_session(
    shell: Shell, coordinator: Scripted
) -> None:
    sent: list[Any] = []
    coordinator.answers["show_call"] = lambda args: (sent.append(args), call_story())[1]
    call = call_story().call["id"]
    lines = shell("calls", "show", call, "--chars", "99").out.splitlines()
    assert (sent[-1].id, sent[-1].chars) == (call, 99)
    assert lines[0] == f"{call}: timeout (infrastructure), 5.00 s"
    assert "  call: shop.lookup(item='flour')" in lines
    assert "  error: no answer within 5 s " in lines
    assert f"  record: {RECORD} is finished, trained: answered (policy)" in lines
    assert "  session: s-1, call 2 of 2" in lines
    assert lines[-1] == f"  agentrl records show '{RECORD}' --after-turn -1"
    assert shell("calls", "show", call, "--json").json["session"][1]["id"] == call


def test_group_of_tool_errors_names_the_command_that_lists_its_calls(shell: Shell, coordinator: Scripted) -> None:
    groups = [ToolErrorGroup("shop", "lookup", status, "policy", "it's # s", 2) for status in ("timeout", "malformed")]
    coordinator.answers["tool_errors"] = lambda args: groups
    lines = shell("tools", "errors", "--filter", "turn>1").out.splitlines()
    assert [line for line in lines if "agentrl calls" in line] == [
        """    agentrl calls --error 'it'"'"'s # s' --filter 'turn>1'"""
    ]
