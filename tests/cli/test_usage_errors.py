"""Usage errors: one sentence, a fitting exit code, and with --json one document."""

from __future__ import annotations

import json
import subprocess

import pytest

from agentrl import __version__
from agentrl.errors import ExitCode
from tests.cli.conftest import PROGRAM, Shell
from tests.cli.scripted import Scripted

WRONG = {
    "status --run nosuch": (ExitCode.UNKNOWN, "no run named nosuch"),
    "status --run ../x": (ExitCode.CONFIG, "no name of a run"),
    "logs web-0 --lines banana": (ExitCode.USAGE, "'banana' is not a whole number."),
    "logs web-0 --lines -3": (ExitCode.USAGE, "-3 is not 0 or more."),
    "events --limit 0": (ExitCode.USAGE, "0 is not from 1 to 10000."),
    "events --since banana": (ExitCode.USAGE, "not a duration"),
    "events --kind nosuch": (ExitCode.USAGE, "is not one of"),
    "up nowhere.yaml": (ExitCode.CONFIG, "no run file"),
    "up .": (ExitCode.CONFIG, "Is a directory"),
    "up --timeout banana": (ExitCode.USAGE, "'banana' is not a number."),
    "up --timeout -1": (ExitCode.USAGE, "-1.0 is not 0 or more."),
    "up --unless-down": (ExitCode.USAGE, "--unless-down belongs to --foreground."),
    "up --foreground --dry-run": (ExitCode.USAGE, "without --read-only, --dry-run and --key"),
    "up nowhere.yaml --foreground": (ExitCode.CONFIG, "no run file"),
    "config show nowhere.yaml": (ExitCode.CONFIG, "no run file"),
    "runs forget nosuch": (ExitCode.UNKNOWN, "no run named nosuch"),
    "runs wipe nosuch": (ExitCode.UNKNOWN, "no run named nosuch"),
    "runs nosuch": (ExitCode.USAGE, "No such command"),
    "keys new": (ExitCode.USAGE, "Missing argument"),
    "check harbor:~no-such-user/tasks": (ExitCode.CONFIG, "~no-such-user/tasks"),
    "keys new x --permission king": (ExitCode.USAGE, "is not one of"),
    "status --key nowhere.json": (ExitCode.CONFIG, "cannot be read"),
    "status --key .": (ExitCode.CONFIG, "Is a directory"),
    "records export -o nowhere/file": (ExitCode.USAGE, "cannot be written: No such file"),
    "records export -o .": (ExitCode.USAGE, "cannot be written: Is a directory"),
    "records export --as dataset -o a.parquet": (ExitCode.USAGE, "A dataset is written as JSON lines"),
    "records export -o nowhere/a.parquet": (ExitCode.USAGE, "cannot be written: No such file"),
    "steps list --limit 99999": (ExitCode.USAGE, "99999 is not from 1 to 1000."),
    "tasks requeue": (ExitCode.USAGE, "Missing argument"),
    "completion klingon": (ExitCode.USAGE, "is not one of"),
    "daemon nosuch": (ExitCode.USAGE, "no daemon"),
    "drain web-0 --host vm": (ExitCode.USAGE, "either a unit or, by --host, a host"),
    "scale web banana": (ExitCode.USAGE, "not a number of units"),
    "tui --speed banana": (ExitCode.USAGE, "'banana' is not a number."),
    "mcp --up-to king": (ExitCode.USAGE, "is not one of"),
    "mcp --up-to reversible": (ExitCode.USAGE, "--up-to needs --key"),
    "mcp --key nowhere.json --up-to reversible": (ExitCode.CONFIG, "cannot be read"),
    "tui --at 14:05": (ExitCode.USAGE, "--at is for a recording"),
    "nosuch": (ExitCode.USAGE, "No such command"),
    "status --nosuch": (ExitCode.USAGE, "No such option"),
}


@pytest.mark.parametrize("words", WRONG)
def test_usage_error_is_one_sentence_with_an_exit_code(shell: Shell, coordinator: Scripted, words: str) -> None:
    code, expected = WRONG[words]
    result = shell(*words.split(), expect=code)
    assert result.out == ""
    assert expected in result.err
    assert len(result.err.splitlines()) == 1, result.err
    if not words.startswith(("daemon", "mcp", "tui")):
        error = shell(*words.split(), "--json", expect=code).json["error"]
        assert (error["code"], expected in error["message"]) == (code, True)


def test_message_about_one_living_process_is_in_the_singular(shell: Shell, coordinator: Scripted) -> None:
    assert f"coordinator (pid {_pid(coordinator)}) lives." in shell("runs", "forget", "demo", expect=6).err


def _pid(coordinator: Scripted) -> int:
    return int(json.loads((coordinator.state_dir / "coordinator.json").read_text())["pid"])


def test_reader_that_ends_early_is_no_error(shell: Shell, coordinator: Scripted) -> None:
    command = subprocess.Popen([*PROGRAM, "config", "schema"], env=shell.env, stdout=-1, stderr=-1)
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.wait(60) == ExitCode.OK
    assert command.stderr.read() == b""
    command.stderr.close()


def test_drain_of_a_unit_and_a_host_suggests_both_commands(shell: Shell, coordinator: Scripted) -> None:
    result = shell("drain", "worker-0", "--host", "vm", expect=ExitCode.USAGE).err
    assert "Try `agentrl drain worker-0` or `agentrl drain --host vm`." in result


def test_version_is_json_with_the_json_option(shell: Shell) -> None:
    assert shell("--json", "--version").json == {"version": __version__}
    assert shell("--version").out == f"agentrl {__version__}\n"


@pytest.mark.parametrize("group", ["alerts", "checkpoints", "config", "keys", "records", "steps", "tasks", "versions"])
def test_group_of_commands_without_a_command_prints_its_help(shell: Shell, group: str) -> None:
    said = shell(group)
    assert said.out.lstrip().startswith(f"Usage: agentrl {group}")
    assert said.err == ""
