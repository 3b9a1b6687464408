"""Commands that change the run: their questions, requests, waits and output."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agentrl.cli import up_wait
from agentrl.cli.options import Cli
from agentrl.config import paths
from agentrl.errors import ConflictError, ExitCode, RefusedError, UsageError
from agentrl.formatting.row_text import knob_range
from agentrl.protocol import control_commands, grammar, rows
from agentrl.protocol.effects import Effect, Tier
from agentrl.protocol.message_base import Args
from agentrl.protocol.words import seconds
from tests.cli.conftest import PROGRAM, CommandResult, Shell
from tests.cli.scripted import DESTRUCTIVE, DISRUPTIVE, Scripted
from tests.waiting import PATIENCE_S, eventually


@pytest.mark.parametrize(("typed", "meant"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)])
def test_durations(typed: str, meant: float) -> None:
    assert seconds(typed) == meant


@pytest.mark.parametrize("typed", ["", "h", "-1s", "nan", "inf", "1w"])
def test_invalid_durations_are_refused(typed: str) -> None:
    with pytest.raises(UsageError):
        seconds(typed)


def test_minus_one_is_parsed_as_an_argument(shell: Shell, coordinator: Scripted) -> None:
    shell("scale", "web", "-1")
    shell("scale", "web", "4", "--seen", "2")
    assert coordinator.sent("scale") == [
        control_commands.Scale("web", by=-1),
        control_commands.Scale("web", to=4, seen=2),
    ]


def test_finished_command_is_reported_in_words_and_in_json(shell: Shell, coordinator: Scripted) -> None:
    assert "done in" in shell("pause", "web").out
    document = shell("pause", "web", "--json").json
    assert document["operation"]["state"] == "succeeded"
    assert document["effect"]["starts"] == []


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (rows.OperationState.FAILED, ExitCode.FAILED),
        (rows.OperationState.EXPIRED, ExitCode.FAILED),
        (rows.OperationState.SUPERSEDED, ExitCode.CONFLICT),
    ],
)
def test_exit_code_follows_from_the_state_of_the_ended_operation(
    shell: Shell, coordinator: Scripted, ended: rows.OperationState, code: ExitCode
) -> None:
    coordinator.ends_as = ended
    assert str(ended) in shell("pause", expect=code).err
    assert shell("pause", "--json", expect=code).json["operation"]["state"] == ended


def test_no_wait_returns_the_accepted_operation(shell: Shell, coordinator: Scripted) -> None:
    coordinator.ends_as = rows.OperationState.RUNNING
    accepted = shell("resume", "--no-wait", "--json").json
    assert f"op/{accepted['operation']}" in coordinator.rows


def test_timeout_leaves_the_operation_running(shell: Shell, coordinator: Scripted) -> None:
    coordinator.ends_as = rows.OperationState.RUNNING
    assert "goes on" in shell("resume", "--timeout", "0.3", expect=ExitCode.TIMEOUT).err


def test_ctrl_c_ends_only_the_wait(
    shell: Shell, coordinator: Scripted, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    coordinator.ends_as = rows.OperationState.RUNNING
    process = shell.start("resume")
    eventually(lambda: coordinator.sent("show_operation"), what="the waiting")
    result = interrupted(process)
    assert result.code == ExitCode.INTERRUPTED
    assert "goes on" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_before_up_is_accepted_reports_that_nothing_was_started(
    shell: Shell, coordinator: Scripted, tmp_path: Path, number: signal.Signals
) -> None:
    wanted, may_answer = threading.Event(), threading.Event()

    def slow(args: Args) -> None:
        wanted.set()
        may_answer.wait(2 * PATIENCE_S)

    coordinator.answers["apply"] = slow
    process = shell.start("up", str(run_file(shell, coordinator, tmp_path)))
    assert wanted.wait(60), process.communicate(timeout=5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    may_answer.set()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Nothing was started or changed." in err


@pytest.mark.parametrize("answers", [True, False], ids=["late", "never"])
def test_ctrl_c_ends_a_down_that_waits_for_its_answer(shell: Shell, coordinator: Scripted, answers: bool) -> None:
    wanted, may_answer = threading.Event(), threading.Event()

    def slow(args: Args) -> control_commands.Accepted:
        wanted.set()
        may_answer.wait(2 * PATIENCE_S)
        running = rows.OperationRow("down", "down", "down", "me", rows.OperationState.RUNNING, time.time())
        coordinator._publish("op/down", running)
        return control_commands.Accepted("down", Effect(), Tier.NONE)

    coordinator.answers["down"] = slow
    process = shell.start("down", "--yes")
    assert process.stderr is not None
    try:
        assert wanted.wait(60), "the coordinator got no request"
        process.send_signal(signal.SIGINT)
        if answers:
            may_answer.set()
            assert "Ctrl-C once more kills" in process.stderr.readline()
            assert process.poll() is None
        else:
            eventually(lambda: not _pending(process.pid, signal.SIGINT), what="it to have heard the first")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == ExitCode.INTERRUPTED
    finally:
        may_answer.set()
        process.kill()
        process.communicate(timeout=60)


def _pending(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"^ShdPnd:\s*(\w+)", status, re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def run_file(shell: Shell, coordinator: Scripted, tmp_path: Path) -> Path:
    """A run file that matches the run of the coordinator."""
    known = coordinator.state_dir / paths.RUN_FILE
    run_dir = str(shell.home / "dir")
    known.write_text(json.dumps(json.loads(known.read_text()) | {"run_dir": run_dir}))
    file = tmp_path / "run.yaml"
    file.write_text(f"name: demo\ndir: {run_dir}\nsidecars: {{}}\n")
    return file


def test_up_reports_units_that_are_not_up_at_its_end(shell: Shell, coordinator: Scripted, tmp_path: Path) -> None:
    died = "died while ready (exit 1)"
    coordinator.rows |= {
        "unit/web-0": rows.UnitRow("web-0", "web", "sidecar", rows.UnitState.READY),
        "unit/web-1": rows.UnitRow(
            "web-1", "web", "sidecar", rows.UnitState.BACKOFF, reason=died, last_exit=rows.ExitStatus(code=1)
        ),
        "unit/web-2": rows.UnitRow("web-2", "web", "sidecar", rows.UnitState.SUSPECT, reason="silent for 6 s"),
        "unit/job-0": rows.UnitRow("job-0", "job", "sidecar", rows.UnitState.STOPPED, done=True),
        "unit/engine-0": rows.UnitRow("engine-0", "engine", "engine", rows.UnitState.READY),
        "unit/old-0": rows.UnitRow("old-0", "old", "sidecar", rows.UnitState.STOPPED, desired=False),
    }
    in_use = "OSError: [Errno 98] Address already in use"
    coordinator.rows["incident/1"] = rows.IncidentRow("1", "web-1", 0, 1.0, died, tail=("Traceback:", in_use, ""))
    file = str(run_file(shell, coordinator, tmp_path))
    result = shell("up", file, expect=ExitCode.UNHEALTHY)
    assert f"web-1 is not up now: backoff, {died}\n    last line of its log: {in_use}\n" in result.err
    assert "web-0 is not up" not in result.err
    assert "job-0 is not up" not in result.err
    assert "old-0" not in result.err
    assert result.out.endswith("up now: engine 1, sidecar 2\n")
    assert "`agentrl logs web-1` shows what it wrote" in result.err
    document = shell("up", file, "--json", expect=ExitCode.UNHEALTHY).json
    assert document["not_up"] == {"web-1": {"state": "backoff", "reason": died, "last_line": in_use}}
    assert document["up"] == {"engine": 1, "sidecar": 2}, "a finished job counts neither as up nor as not up"
    coordinator.rows["unit/web-1"] = rows.UnitRow("web-1", "web", "sidecar", rows.UnitState.READY)
    assert shell("up", file, "--json").json["not_up"] == {}
    silent = {"tool server search": "it exited with 1"}
    coordinator.rows["unit/web-1"] = rows.UnitRow("web-1", "web", "sidecar", rows.UnitState.READY, problems=silent)
    said = shell("up", file, expect=ExitCode.UNHEALTHY)
    assert "web-1 does not do its whole work, tool server search: it exited with 1" in said.err
    no_program = "cannot be started: there is no program web"
    coordinator.rows["unit/web-1"] = rows.UnitRow("web-1", "web", "sidecar", rows.UnitState.FATAL, reason=no_program)
    result = shell("up", file, expect=ExitCode.UNHEALTHY)
    assert "agentrl logs" not in result.err, "a unit that never started has no log to suggest"
    assert "`agentrl config check --run demo` looks for its program" in result.err


def test_script_without_consent_gets_an_error_in_place_of_a_question(shell: Shell, coordinator: Scripted) -> None:
    coordinator.effects["scale"] = DISRUPTIVE
    shell("scale", "web", "1")
    assert len(coordinator.sent("scale")) == 1
    coordinator.effects["scale"] = DESTRUCTIVE
    refused = shell("scale", "web", "1", expect=ExitCode.REFUSED)
    assert "14 records are lost" in refused.err
    assert "--yes" in refused.err
    assert len(coordinator.sent("scale")) == 1, "nothing was sent"
    shell("scale", "web", "1", "--yes")
    assert len(coordinator.sent("scale")) == 2


def test_dry_run_changes_nothing(shell: Shell, coordinator: Scripted) -> None:
    coordinator.effects["scale"] = DESTRUCTIVE
    assert "14 records are lost" in shell("scale", "web", "1", "--dry-run", "--yes").out
    document = shell("scale", "web", "1", "--dry-run", "--json").json
    assert document["tier"] == "destructive"
    assert not coordinator.sent("scale")


@pytest.mark.parametrize(("typed", "sent"), [("y\n", True), ("n\n", False), ("\n", False), ("\x03", False)])
def test_question_shows_the_effect(shell: Shell, coordinator: Scripted, typed: str, sent: bool) -> None:
    coordinator.effects["scale"] = DESTRUCTIVE
    shown = in_terminal(shell, ["scale", "web", "1"], r"Go on\?", typed)
    assert "14 records are lost" in shown
    assert bool(coordinator.sent("scale")) is sent


def in_terminal(shell: Shell, arguments: list[str], question: str, typed: str) -> str:
    """Runs a command in a terminal of its own and answers the question. Returns the text of the terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(shell.home.parent)
        os.execve(PROGRAM[0], [*PROGRAM, *arguments], {**shell.env, "TERM": "xterm"})
    shown, deadline, answered = "", time.monotonic() + 60, False
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 2.0)[0]:
                # A Ctrl-C just before the program reads is only seen at the next key, so press it again.
                if answered and typed == "\x03":
                    os.write(terminal, typed.encode())
                continue
            try:
                shown += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                break
            if not answered and re.search(question, shown):
                answered = True
                os.write(terminal, typed.encode())
        else:
            os.kill(child, signal.SIGKILL)
    finally:
        os.waitpid(child, 0)
        os.close(terminal)
    assert answered, shown
    return shown


def test_unit_is_sent_with_its_current_incarnation(shell: Shell, coordinator: Scripted) -> None:
    coordinator.rows["unit/web-0"] = rows.UnitRow("web-0", "web", "sidecar", rows.UnitState.READY, incarnation=7)
    shell("restart", "web-0")
    shell("restart", "web-0.3")
    shell("restart", "web")
    shell("stop", "web-0", "--force")
    assert coordinator.sent("restart") == [
        control_commands.Restart("web-0", 7),
        control_commands.Restart("web-0", 3),
        control_commands.Restart("web", 0),
    ]
    assert coordinator.sent("force_stopped") == [control_commands.ForceStopped("web-0", 7)]
    assert not coordinator.sent("stop")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("records exclude --made-by engine-0.4 --since canary --note bad", "exclude_records"),
        ("records cancel --filter a=b --since 1w", "cancel_records"),
        ("records rescore --since 2h --scorer exact", "rescore_records"),
        ("review mark bad --made-by engine-0 --filter status=scored", "review_records"),
        ("tools release r-1 --toolbox toolbox-0.4", "release_session"),
        ("scale web +2 --seen 3", "scale"),
    ],
)
def test_shell_sends_what_the_grammar_reads(shell: Shell, coordinator: Scripted, line: str, command: str) -> None:
    shell(*line.split(), "--yes")
    read = grammar.parse(line.split())
    assert read.spec.name == command
    assert coordinator.sent(command) == [read.args]


def test_age_that_is_none_is_refused_before_anything_is_sent(shell: Shell, coordinator: Scripted) -> None:
    refused = shell("records", "exclude", "--since", "never", expect=ExitCode.USAGE)
    assert "'never' is neither an age nor `canary`." in refused.err
    assert not coordinator.received


def test_drain_needs_a_unit_or_a_host(shell: Shell, coordinator: Scripted) -> None:
    shell("drain", expect=ExitCode.USAGE)
    shell("drain", "web-0", "--host", "h", expect=ExitCode.USAGE)
    shell("drain", "--host", "h", "--cancel")
    assert coordinator.sent("drain") == [control_commands.DrainUnits(host="h", cancel=True)]


def test_refusal_is_one_line(shell: Shell, coordinator: Scripted) -> None:
    def refuse(args: Args) -> None:
        raise RefusedError("The key of eve is a viewer's and may not scale.", hint="Ask an admin.")

    coordinator.answers["scale"] = refuse
    result = shell("scale", "web", "2", expect=ExitCode.REFUSED)
    assert result.err == "agentrl: The key of eve is a viewer's and may not scale. Ask an admin.\n"
    error = shell("scale", "web", "2", "--json", expect=ExitCode.REFUSED).json["error"]
    assert error["name"] == "refused"


KNOB = rows.KnobRow(
    "supervision.backoff_max_s", "float", 60.0, value=60.0, revision=3, unit="s", minimum=1.0, maximum=600.0
)


def test_tune_sends_the_revision_that_it_has_read(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["knobs"] = lambda args: [KNOB]
    shell("tune", KNOB.name, "30", "--note", "quieter")
    assert coordinator.sent("tune") == [control_commands.Tune(KNOB.name, 30.0, 3, "quieter")]
    shell("tune", KNOB.name, "--undo")
    assert coordinator.sent("undo_tune") == [control_commands.UndoTune(KNOB.name, 3)]


def test_tune_sends_the_revision_given_by_seen(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["knobs"] = lambda args: [KNOB]
    shell("tune", KNOB.name, "30", "--seen", "2")
    shell("tune", KNOB.name, "--undo", "--seen", "2")
    assert coordinator.sent("tune") == [control_commands.Tune(KNOB.name, 30.0, 2)]
    assert coordinator.sent("undo_tune") == [control_commands.UndoTune(KNOB.name, 2)]


def test_invalid_knob_value_is_a_usage_error(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["knobs"] = lambda args: [KNOB]
    result = shell("tune", KNOB.name, "many", expect=ExitCode.USAGE)
    assert f"{KNOB.name} must be a number" in result.err
    assert "Nothing was changed" in result.err
    assert not coordinator.sent("tune")


def test_tune_previews_without_changing(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["knobs"] = lambda args: [KNOB]
    coordinator.effects["tune"] = Effect(changes=("backoff_max_s 60 → 30",), scientific=True)
    result = shell("tune", KNOB.name, "30", "--preview")
    assert "60 → 30" in result.out
    assert "note" in result.out
    assert not coordinator.sent("tune")


def test_tune_conflict_shows_the_newer_value(shell: Shell, coordinator: Scripted) -> None:
    def conflict(args: Args) -> None:
        raise ConflictError("backoff_max_s was set to 45 by ann 3 s ago.", hint="Look again.")

    coordinator.answers["knobs"] = lambda args: [KNOB]
    coordinator.answers["tune"] = conflict
    assert "45 by ann" in shell("tune", KNOB.name, "30", expect=ExitCode.CONFLICT).err


def test_tune_of_a_finished_owner_reports_no_effect(shell: Shell, coordinator: Scripted) -> None:
    rate = rows.KnobRow("rate", "float", 0.1, value=0.2, revision=2, boundary="next version", owner="trainer")
    coordinator.answers["knobs"] = lambda args: [rate]
    coordinator.rows["group/trainer"] = rows.GroupRow("trainer", "trainer", 1, ready=1)
    assert "takes effect next version;" in shell("tune", "rate").out
    assert "next version" in shell("tune").out
    coordinator.rows["group/trainer"] = rows.GroupRow("trainer", "trainer", 1, other={rows.COMPLETED: 1})
    assert "takes effect if run again;" in shell("tune", "rate").out
    assert "if run again" in shell("tune").out


def test_tune_without_value_shows_knob_and_history(shell: Shell, coordinator: Scripted) -> None:
    coordinator.answers["knobs"] = lambda args: [KNOB]
    coordinator.answers["knob_history"] = lambda args: [rows.AuditRow(1, time.time(), "ann", "tune", "90 → 60")]
    assert "ann  90 → 60" in shell("tune", KNOB.name).out
    assert "1 to 600" in shell("tune", KNOB.name).out
    coordinator.answers["knob_history"] = lambda args: [
        rows.AuditRow(number, time.time(), "ann", "tune", f"{90 - number} → {89 - number}") for number in range(3)
    ]
    assert "90 → 89" in shell("tune", KNOB.name, "--history").out
    last = shell("tune", KNOB.name).out
    assert "88 → 87" in last
    assert "90 → 89" not in last
    assert "--history" in last
    assert shell("tune", KNOB.name, "--json").json["history"][0]["who"] == "ann"
    near = shell("tune", "supervision.backof_max_s", expect=ExitCode.UNKNOWN)
    assert KNOB.name in near.err


def test_ranges_of_knobs_in_words() -> None:
    assert knob_range(rows.KnobRow("k", "choice", "a", value="a", revision=1, choices=("a", "b"))) == "a, b"


def test_keys_new_writes_a_private_file(
    shell: Shell, tmp_path: Path, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    with Scripted(shell.home) as coordinator:
        result = shell("keys", "new", "ann", expect=ExitCode.CONFIG)
        assert "coordinator.listen" in result.err
    (coordinator.state_dir / "coordinator.json").unlink()
    coordinator = Scripted(shell.home, "wide")
    coordinator.listen = {"listen": "tcp://127.0.0.1:7400", "public": "x" * 40}
    with coordinator:
        result = shell("keys", "new", "ann", "--permission", "operator", "--json")
        file = Path(result.json["file"])
        secret = json.loads(file.read_text())["secret"]
        assert file.stat().st_mode & 0o777 == 0o600
        (sent,) = coordinator.sent("add_key")
        assert isinstance(sent, control_commands.AddKey)
        assert (sent.name, sent.permission, sent.public) == ("ann", "operator", result.json["public"])
        assert secret not in result.out + result.err
        assert "exists already" in shell("keys", "new", "ann", expect=ExitCode.CONFLICT).err
        coordinator.ends_as = rows.OperationState.FAILED
        shell("keys", "new", "bob", expect=ExitCode.FAILED)
        assert not (tmp_path / "bob.key").exists(), "the file of a key that was not admitted is removed"
        coordinator.ends_as = rows.OperationState.RUNNING
        result = shell("keys", "new", "eve", "--timeout", "0.5", expect=ExitCode.TIMEOUT)
        assert "eve.key is kept" in result.err
        assert (tmp_path / "eve.key").exists(), "the file of a key that may still be admitted is kept"
        waiting = shell.start("keys", "new", "zoe")
        eventually(lambda: len(coordinator.sent("add_key")) == 4, what="the key to be sent")
        assert "zoe.key is kept" in interrupted(waiting).err
        assert (tmp_path / "zoe.key").exists()


def test_up_waits_until_no_unit_reports_a_problem(shell: Shell, coordinator: Scripted, tmp_path: Path) -> None:
    late = rows.UnitRow("engine-0", "engine", "engine", rows.UnitState.READY, incomplete="it serves no version yet")
    trainer = rows.UnitRow("trainer-0", "trainer", "trainer", rows.UnitState.READY)
    coordinator.rows |= {"unit/engine-0": late, "unit/trainer-0": trainer}
    file = str(run_file(shell, coordinator, tmp_path))
    said = shell("up", file, "--timeout", "2")
    assert "waiting for 1 unit: engine-0: it serves no version yet" in said.err
    assert "engine-0 is still warming up: it serves no version yet" in said.err
    assert "does not do" not in shell("up", file, "--no-wait").err
    waiting = shell.start("up", file)
    try:
        assert waiting.stderr is not None
        assert "waiting for 1 unit: engine-0" in waiting.stderr.readline()
        coordinator.rows["unit/engine-0"] = msgspec.structs.replace(late, incomplete="")
        assert waiting.wait(timeout=60) == ExitCode.OK
    finally:
        waiting.kill()
        waiting.communicate()


def test_up_that_changes_judges_waits_for_a_sampler_to_see_whether_its_judge_answers(
    shell: Shell, coordinator: Scripted, tmp_path: Path
) -> None:
    away = {"scorer right": "The judge right cannot say"}
    sampler = rows.UnitRow("sampler-0", "sampler", "sampler", rows.UnitState.READY, problems=away)
    coordinator.rows["unit/sampler-0"] = sampler
    file = str(run_file(shell, coordinator, tmp_path))
    unchanged = shell("up", file, expect=ExitCode.UNHEALTHY)
    assert "waiting" not in unchanged.err
    coordinator.effects["apply"] = Effect(changes=("models.judge.0.url goes from 1 to 2",))
    waiting = shell.start("up", file, "--yes")
    try:
        assert waiting.stderr is not None
        assert "waiting for 1 unit: sampler-0: scorer right: The judge" in waiting.stderr.readline()
        coordinator.rows["unit/sampler-0"] = msgspec.structs.replace(sampler, problems={})
        assert waiting.wait(timeout=60) == ExitCode.OK
    finally:
        waiting.kill()
        waiting.communicate()


@pytest.mark.parametrize("trainers", ["paused", "none", "not wanted"])
def test_up_does_not_wait_for_a_first_version_that_no_trainer_will_publish(
    shell: Shell, coordinator: Scripted, tmp_path: Path, trainers: str
) -> None:
    late = rows.UnitRow("engine-0", "engine", "engine", rows.UnitState.READY, incomplete="it serves no version yet")
    trainer = rows.UnitRow("trainer-0", "trainer", "trainer", rows.UnitState.READY)
    coordinator.rows["unit/engine-0"] = late
    if trainers != "none":
        changed = msgspec.structs.replace(trainer, paused=trainers == "paused", desired=trainers == "paused")
        coordinator.rows["unit/trainer-0"] = changed
    file = str(run_file(shell, coordinator, tmp_path))
    said = shell("up", file, "--json")
    assert said.json["warming_up"] == {"engine-0": "it serves no version yet"}
    assert said.json["not_up"] == {}


async def test_one_deadline_holds_for_the_operation_and_the_first_version(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rows.UnitRow("engine-0", "engine", "engine", rows.UnitState.READY, incomplete="it serves no version yet")
    trainer = rows.UnitRow("trainer-0", "trainer", "trainer", rows.UnitState.READY)

    async def units(_: object) -> dict[str, rows.UnitRow]:
        return {"engine-0": engine, "trainer-0": trainer}

    monkeypatch.setattr(up_wait, "unit_rows", units)
    passed = time.monotonic() - 1.0
    await asyncio.wait_for(
        up_wait.until_complete(Cli(json=True, timeout_s=1000.0), cast(Any, None), passed), PATIENCE_S
    )
