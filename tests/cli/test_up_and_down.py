"""The commands up and down on real runs: repeated, interrupted, concurrent, and without a living coordinator."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.run_removal import remove_state
from agentrl.cli.up_transaction import BeginLock
from agentrl.config import paths
from agentrl.errors import ExitCode
from tests.cli.conftest import CommandResult
from tests.e2e.running import PYTHON, UP_WITHIN_S, Run, running
from tests.waiting import eventually

SLEEPER = ["sleep", "1000"]
NEVER_READY = {"ready": {"exec": "false", "interval_s": 0.2}, "start_deadline_s": 300}
STUBBORN = {
    "command": ["sh", "-c", "trap '' TERM; touch $AGENTRL_RUN_DIR/stubborn; while true; do sleep 0.1; done"],
    # A shell that has just started does not ignore SIGTERM yet.
    "ready": {"exec": ["test", "-e", "{run_dir}/stubborn"], "interval_s": 0.2},
}


@pytest.fixture
def a_run(tmp_path: Path) -> Iterator[Run]:
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}")


def test_up_reports_kept_started_stopped_and_changed(a_run: Run) -> None:
    a_run.sidecar("web", SLEEPER, count=2)
    a_run.write()
    assert a_run.cli("up", str(a_run.file), "--dry-run")["effect"]["starts"] == ["web-0", "web-1"]
    assert not (a_run.state_dir / "run.json").exists(), "a dry run writes no file"

    first = a_run.up()
    assert sorted(first["started"]) == ["web-0", "web-1"]
    assert a_run.up()["kept"] == ["web-0", "web-1"]

    a_run.sidecar("web", SLEEPER, count=1)
    a_run.sidecar("db", SLEEPER)
    third = a_run.up()
    assert (third["kept"], third["started"], third["stopped"]) == (["web-0"], ["db-0"], ["web-1"])
    again = a_run.cli("up", "--run", a_run.name)
    assert again["kept"] == ["db-0", "web-0"], "the file of the last up is known"
    a_run.sidecar("db", ["sleep", "1001"])
    a_run.write()
    result = a_run.raw("up", str(a_run.file)).stdout
    assert "replaced 1: db-0" in result
    assert "stopped" not in result


def test_up_names_settings_of_the_last_up_that_are_left_out(a_run: Run) -> None:
    a_run.sidecar("web", SLEEPER, env={"API_TOKEN": "hunter2"})
    a_run.up("--set", "sidecars.web.drain_grace_s=7")
    again = a_run.raw("up", "--run", a_run.name, "--dry-run")
    assert "changes nothing" in again.stdout, "the settings of the last `up` are stored"
    assert "left out" not in again.stderr
    other = a_run.raw("up", str(a_run.file), "--dry-run", "--set", "sidecars.web.env.API_TOKEN=another")
    assert "The last `up` of this file had --set sidecars.web.drain_grace_s=7, which is left out now" in other.stderr
    assert "restarts web-0" in other.stdout
    assert "sidecars.web.drain_grace_s goes from 7.0 to 5.0" in other.stdout
    assert "API_TOKEN goes from (hidden) to (hidden)" in other.stdout
    still = a_run.raw("up", str(a_run.file), "--dry-run")
    assert "had --set sidecars.web.drain_grace_s=7, which" in still.stderr, "a dry run does not count as the last `up`"
    done = a_run.cli("up", str(a_run.file))
    assert "sidecars.web.drain_grace_s goes from 7.0 to 5.0" in done["changed"]
    assert a_run.cli("up", str(a_run.file))["changed"] == []


def test_up_of_an_unknown_run_is_an_error(a_run: Run) -> None:
    code, document = a_run.cli("up", "--run", "nosuch", check=False)
    assert code == ExitCode.UNKNOWN
    assert "no run named nosuch" in document["error"]["message"]


def test_interrupted_up_reports_what_is_running(a_run: Run) -> None:
    # The unit cannot be ready at the second `up`, however far the first one gets before the interrupt.
    a_run.sidecar("web", SLEEPER, **NEVER_READY)
    a_run.write()
    process = a_run.start("up", str(a_run.file))
    eventually(lambda: (a_run.state_dir / "run.json").exists(), what="the beginning of up")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=UP_WITHIN_S)
    assert process.returncode == ExitCode.INTERRUPTED
    assert any(result in err for result in ("Nothing was started", "No unit was started", "goes on")), err
    assert ("Nothing was started" in err) <= (not a_run.processes())
    hurried = a_run.raw("up", str(a_run.file), "--timeout", "0.01")
    assert hurried.returncode == ExitCode.TIMEOUT, hurried
    assert "goes on" in hurried.stderr


def test_two_concurrent_ups_succeed(a_run: Run) -> None:
    a_run.sidecar("web", SLEEPER, count=2)
    a_run.write()
    both = [a_run.start("up", str(a_run.file), "--json") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=UP_WITHIN_S)
        assert process.returncode == 0, err
        assert json.loads(out)["operation"]["state"] == "succeeded"
    assert a_run.incarnations() == {"web-0": 1, "web-1": 1}


def test_up_succeeds_after_another_was_undone(a_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run.sidecar("web", SLEEPER)
    a_run.write()
    monkeypatch.setenv("AGENTRL_HOME", str(a_run.home))
    paths.create_run(a_run.name, a_run.dir)
    begins = BeginLock.take(a_run.state_dir)
    assert begins is not None
    process = a_run.start("up", str(a_run.file))
    assert process.stderr is not None
    waits = process.stderr.readline()
    assert f"another `agentrl up` begins the run {a_run.name}" in waits
    assert not a_run.processes(), "no process starts while it waits"
    code, result = a_run.cli("up", str(a_run.file), "--timeout", "0.1", check=False)
    assert (code, result["error"]["name"]) == (ExitCode.CONFLICT, "conflict")
    remove_state(a_run.state_dir)
    begins.release()
    _, err = process.communicate(timeout=UP_WITHIN_S)
    assert process.returncode == 0, err
    assert a_run.incarnations() == {"web-0": 1}


def test_down_proves_that_no_process_is_left_and_the_run_starts_again(a_run: Run) -> None:
    a_run.sidecar("web", SLEEPER, count=2)
    a_run.up()
    keepers = [a_run.coordinator_pid(), a_run.agent_pid()]
    ended = a_run.cli("down")
    assert ended["proven"] is True
    assert len(ended["lines"]) == 1, "each host has one line"
    assert ended["scan"]["found"] == []
    assert not a_run.processes()
    assert not any(a_run.alive(pid) for pid in keepers)

    nothing = a_run.cli("down")
    assert (nothing["proven"], nothing["was_up"]) == (True, False)
    assert a_run.up()["started"] == ["web-0", "web-1"]


def test_ctrl_c_leaves_the_run_alive(a_run: Run, interrupted: Callable[[subprocess.Popen[str]], CommandResult]) -> None:
    a_run.sidecar("slow", SLEEPER, **NEVER_READY)
    a_run.write()
    process = a_run.start("up", str(a_run.file))
    _line_with(process, "slow-0 is starting")  # `up` knows that it was accepted
    eventually(lambda: a_run.lives_of("slow-0"), what="the unit to run")
    result = interrupted(process)
    assert result.code == ExitCode.INTERRUPTED
    assert f"The run {a_run.name} goes on" in result.err
    assert a_run.lives_of("slow-0") == {"slow-0.1"}
    assert a_run.alive(a_run.coordinator_pid())


def test_waiting_up_reports_that_the_run_was_taken_down(a_run: Run) -> None:
    a_run.sidecar("slow", SLEEPER, **NEVER_READY)
    a_run.write()
    process = a_run.start("up", str(a_run.file), "--json")
    eventually(lambda: a_run.lives_of("slow-0"), what="the unit to run")
    a_run.cli("down")
    out, err = process.communicate(timeout=UP_WITHIN_S)
    assert process.returncode == ExitCode.TAKEN_DOWN, (out, err)
    expected = json.loads(out)["error"]
    assert f"The run {a_run.name} is not up: " in expected["message"]
    assert "took the run down" in expected["message"]
    assert "goes on" not in err


SLOWLY = """
from pathlib import Path
from agentrl.unit import run_unit

def main(unit):
    with unit.phase("warm-up", at_most_s=600):
        unit.status("warm-up: step 3 of 150")
        while not Path("go").exists() and not unit.draining:
            unit.sleep(0.05)
    unit.ready()
    while not unit.draining:
        unit.sleep(0.05)

run_unit(main)
"""


def test_waiting_up_shows_the_status_of_units(a_run: Run) -> None:
    folder = a_run.file.parent
    (folder / "slowly.py").write_text(SLOWLY)
    a_run.sidecar("slow", [PYTHON, str(folder / "slowly.py")], speaks=True, cwd=str(folder))
    a_run.write()
    with a_run.start("up", str(a_run.file)) as process:
        assert process.stderr is not None
        expected = []
        for line in process.stderr:
            expected.append(line)
            if "slow-0 is starting" in line and line.endswith(": warm-up: step 3 of 150\n"):
                break
        else:
            raise AssertionError("".join(expected))
        (folder / "go").touch()
        process.communicate(timeout=UP_WITHIN_S)
    assert process.returncode == ExitCode.OK


def test_closed_terminal_leaves_the_run_alive(a_run: Run) -> None:
    a_run.sidecar("slow", SLEEPER, **NEVER_READY)
    a_run.write()
    child, terminal = pty.fork()
    if child == 0:
        os.execve(PYTHON, [PYTHON, "-m", "agentrl", "up", str(a_run.file)], a_run.environ)
    shown = _read_until(terminal, lambda _: bool(a_run.lives_of("slow-0")))
    os.close(terminal)
    assert _reaped(child), shown
    assert a_run.lives_of("slow-0") == {"slow-0.1"}
    assert a_run.alive(a_run.agent_pid())
    assert a_run.alive(a_run.coordinator_pid())


def _read_until(terminal: int, there: Callable[[str], bool]) -> str:
    os.set_blocking(terminal, False)
    shown = ""

    def look() -> bool:
        nonlocal shown
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        return there(shown)

    eventually(look, every_s=0.1, what="the terminal")
    return shown


def _reaped(child: int) -> bool:
    return eventually(lambda: os.waitpid(child, os.WNOHANG)[0] == child, what="the end of the command")


def test_second_ctrl_c_of_down_kills(a_run: Run) -> None:
    a_run.sidecar("web", **STUBBORN, drain_grace_s=200, term_grace_s=200)
    a_run.up()
    process = a_run.start("down")
    assert process.stderr is not None
    eventually(lambda: a_run.run_row().state == "stopping", what="the run to be stopping")
    a_run.client.close()
    a_run._client = None
    process.send_signal(signal.SIGINT)
    assert "once more kills" in _line_with(process, "Ctrl-C")
    process.send_signal(signal.SIGINT)
    assert "Killing what is left" in _line_with(process, "Killing")
    out, err = process.communicate(timeout=UP_WITHIN_S)
    assert process.returncode == 0, err
    assert "Nothing of" in out


def _line_with(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    while line := process.stderr.readline():
        if words in line:
            return line
    raise AssertionError(f"{words!r} was not printed")


def test_down_without_a_coordinator_names_and_removes_the_processes(a_run: Run) -> None:
    a_run.sidecar("web", SLEEPER, count=2)
    a_run.up()
    a_run.kill_agent_and_coordinator()
    # The spawn helper outlives the agent, because it is the parent of the units.
    eventually(lambda: len(a_run.processes()) == 3, what="the end of the agent's other helpers")

    plan = a_run.cli("down", "--dry-run")
    helper, *units = plan["effect"]["kills"]
    assert "spawn_helper.py" in helper
    assert [name.partition(" ")[0] for name in units] == ["web-0.1", "web-1.1"]
    assert len(a_run.processes()) == 3
    done = a_run.cli("down")
    assert done["proven"] is True
    assert {one["incarnation"] for one in done["scan"]["killed"]} == {"", "web-0.1", "web-1.1"}
    assert not a_run.processes()


def test_run_that_is_up_on_another_host_is_not_started_here(a_run: Run) -> None:
    a_run.sidecar("web", SLEEPER)
    a_run.write()
    a_run.dir.mkdir()
    sign = a_run.dir / "coordinator.json"

    def seen(seconds_ago: float) -> None:
        body = {"host": "far", "boot_id": "another", "name": a_run.name, "uuid": "u"}
        sign.write_text(json.dumps({**body, "heartbeat_at": time.time() - seconds_ago}))

    seen(1)
    code, document = a_run.cli("up", str(a_run.file), check=False)
    assert code == ExitCode.CONFLICT
    assert "far" in document["error"]["message"]
    assert str(sign) in document["error"]["hint"]
    assert not (a_run.state_dir / "run.json").exists()
    seen(3600)
    assert a_run.up()["started"] == ["web-0"]


def test_errors_in_the_run_file_name_their_line(a_run: Run) -> None:
    a_run.file.write_text("name: x\nsidecars:\n  web: {comand: sleep 1}\n")
    code, document = a_run.cli("up", str(a_run.file), check=False)
    assert code == ExitCode.CONFIG
    assert "comand" in document["error"]["message"]
    assert "command" in document["error"]["message"]
    assert "run.yaml:3" in document["error"]["message"]
    code, document = a_run.cli("up", "nowhere.yaml", check=False)
    assert code == ExitCode.CONFIG


def test_follow_shows_changes_as_json(
    a_run: Run, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    a_run.sidecar("web", SLEEPER)
    a_run.write()
    process = a_run.start("up", str(a_run.file), "--follow", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["started"] == ["web-0"]
    seen: list[Any] = []
    while not seen or seen[-1]["key"] != "~caught-up":
        seen.append(json.loads(process.stdout.readline()))
    a_run.cli("restart", "web-0")
    while not (seen[-1]["key"] == "unit/web-0" and seen[-1]["row"]["incarnation"] == 2):
        seen.append(json.loads(process.stdout.readline()))
    result = interrupted(process)
    assert result.code == ExitCode.INTERRUPTED
    assert "goes on" in result.err
    assert a_run.lives_of("web-0")


def test_follow_shows_names_without_feed_keys(
    a_run: Run, interrupted: Callable[[subprocess.Popen[str]], CommandResult]
) -> None:
    a_run.sidecar("web", SLEEPER)
    a_run.write()
    process = a_run.start("up", str(a_run.file), "--follow")
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    awaited = {"web-0 is ready: started\n", f"the run {a_run.name} is running\n"}
    while not awaited <= set(lines):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    assert "unit/" not in "".join(lines)
    interrupted(process)


def test_key_reaches_the_run_until_it_is_revoked(a_run: Run, tmp_path: Path) -> None:
    from tests.ports import free_triplet

    a_run.sidecar("web", SLEEPER)
    a_run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{free_triplet()}"}
    a_run.up()
    made = a_run.cli("keys", "new", "eve", "--permission", "viewer")
    file = made["file"]

    def by_key(*arguments: str) -> CommandResult:
        command = [PYTHON, "-m", "agentrl", *arguments, "--json", "--key", file]
        environ = {**a_run.environ, "AGENTRL_HOME": str(tmp_path / "far")}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    assert by_key("status").json["run"]["name"] == a_run.name
    refused = by_key("scale", "web", "2")
    assert refused.code == ExitCode.REFUSED
    assert "viewer" in refused.json["error"]["message"]
    assert [row["name"] for row in a_run.cli("keys", "list")] == ["eve"]
    code, document = a_run.cli("keys", "revoke", "eve", check=False)
    assert code == ExitCode.REFUSED
    assert "--yes" in document["error"]["hint"]
    watching = subprocess.Popen(
        [PYTHON, "-m", "agentrl", "status", "--follow", "--json", "--key", file],
        env={**a_run.environ, "AGENTRL_HOME": str(tmp_path / "far")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert any("~caught-up" in line for line in watching.stdout)
    a_run.cli("keys", "revoke", "eve", "--yes")
    assert by_key("status").code == ExitCode.KEY_REFUSED
    *_, last = watching.communicate(timeout=60)[0].splitlines()
    assert watching.returncode == ExitCode.KEY_REFUSED
    assert "revoked" in json.loads(last)["error"]["message"]
