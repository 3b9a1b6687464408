"""Commands about this host: doctor, runs, forget, and run directories that cannot be created."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from agentrl.cli.run_removal import remove_state
from agentrl.client.run_processes import start_ticks
from agentrl.config import paths
from agentrl.errors import ExitCode
from tests.cli.conftest import CommandResult, Shell
from tests.cli.scripted import Scripted


def run_file(shell: Shell, name: str, text: str) -> Path:
    path = shell.home.parent / name
    path.write_text(text)
    return path


def looked_at(result: CommandResult) -> dict[str, str]:
    return {check["name"]: check["sentence"] for check in result.json}


def test_doctor_checks_the_named_run_file_or_the_one_in_this_directory(shell: Shell) -> None:
    assert "run file" not in looked_at(shell("doctor", "--json", expect=None))
    run_file(shell, "run.yaml", "name: here\n")
    other = run_file(shell, "other.yaml", "name: other\n")
    assert "the run here" in looked_at(shell("doctor", "--json", expect=None))["run file"]
    assert "the run other" in looked_at(shell("doctor", str(other), "--json", expect=None))["run file"]
    run_file(shell, "run.yaml", "nome: here\n")
    result = shell("doctor", "--json", expect=ExitCode.UNHEALTHY)
    assert "nome" in looked_at(result)["run file"]


def test_up_that_cannot_create_its_directory_leaves_no_file(shell: Shell) -> None:
    path = run_file(shell, "run.yaml", "name: nowhere\ndir: /proc/nope/x\nsidecars: {web: {command: sleep 1000}}\n")
    result = shell("up", str(path), expect=ExitCode.DISK)
    assert "/proc/nope/x cannot be made" in result.err
    assert list(shell.home.iterdir()) == []


def test_forget_needs_consent_and_removes_the_state(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(shell.home))
    fast = shell.home.parent / "fast"
    for name, place in (("old", None), ("linked", fast), ("kept", None)):
        paths.create_run(name, shell.home.parent / "run", elsewhere=place)
    assert "cannot be taken back" in shell("runs", "forget", "old", expect=ExitCode.REFUSED).err
    assert "journal, keys, database" in shell("runs", "forget", "old", "--dry-run").out
    assert [row["name"] for row in shell("runs", "--json").json] == ["kept", "linked", "old"]
    assert "is forgotten" in shell("runs", "forget", "old", "--yes").out
    shell("runs", "forget", "linked", "--yes")
    assert [row["name"] for row in shell("runs", "list", "--json").json] == ["kept"]
    assert not fast.exists()
    assert sorted(entry.name for entry in shell.home.iterdir()) == ["kept"]
    assert shell("runs", "forget", "old", "--yes", expect=ExitCode.UNKNOWN).err.startswith("agentrl: There is no run")


@pytest.mark.parametrize("elsewhere", [None, "fast"])
def test_next_command_completes_a_killed_removal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, elsewhere: str | None
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(shell.home))
    place = shell.home.parent / elsewhere if elsewhere else None
    paths.create_run("old", shell.home.parent / "run", elsewhere=place)
    going = paths.state_dir("old").resolve()

    def killed(directory: Path) -> None:
        (Path(directory) / paths.RUN_FILE).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_state(paths.state_dir("old"))
    left = going.with_name(f".{going.name}.forgotten")
    assert left.is_dir()
    assert paths.list_runs() == []
    # A run of the same name can start again.
    paths.create_run("old", shell.home.parent / "run", elsewhere=place)
    remove_state(paths.state_dir("old"))
    assert not left.exists()
    assert list(shell.home.iterdir()) == []

    left.mkdir()
    if place is not None:
        paths.state_dir("old").symlink_to(place)
    away = shell.home / "away"
    away.symlink_to(shell.home.parent / "disk" / "that-is-not-mounted")
    shell("runs", "forget", "nosuch", expect=ExitCode.UNKNOWN)
    assert not left.exists()
    assert list(shell.home.iterdir()) == [away], "a link to an unmounted disk is not removed"


def test_forget_refuses_a_run_with_living_processes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(shell.home))
    paths.create_run("alive", shell.home.parent / "run")
    who = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    (paths.state_dir("alive") / "coordinator.json").write_text(json.dumps(who))
    result = shell("runs", "forget", "alive", "--yes", expect=ExitCode.CONFLICT)
    assert f"coordinator (pid {os.getpid()}) lives" in result.err
    assert paths.state_dir("alive").is_dir()


def test_runs_show_their_state_and_the_home_directory(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, coordinator: Scripted
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(shell.home))
    for name in ("down", "away", "died"):
        paths.create_run(name, shell.home.parent / name)
    agent = paths.state_dir("away") / "hosts" / "here" / "agent.json"
    agent.parent.mkdir(parents=True)
    agent.write_text(json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}))
    (paths.state_dir("died") / "coordinator.json").write_text(json.dumps({"pid": 0}))
    states = {row["name"]: (row["state"], row["up"]) for row in shell("runs", "--json").json}
    assert states == {"away": ("up", True), "demo": ("up", True), "died": ("died", False), "down": ("down", False)}
    assert [line.split()[:2] for line in shell("runs", COLUMNS="500").out.splitlines()[1:]] == [
        [name, state] for name, (state, _) in sorted(states.items())
    ]
    empty = shell.home.parent / "empty"
    assert str(empty) in shell("runs", AGENTRL_HOME=str(empty)).out
    assert shell("runs", "--json", AGENTRL_HOME=str(empty)).json == []
    assert str(empty) in shell("status", AGENTRL_HOME=str(empty), expect=ExitCode.NO_COORDINATOR).err


def test_status_of_a_run_that_is_down_names_the_up_command(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(shell.home))
    paths.create_run("mine", shell.home.parent / "run")
    result = shell("status", "--run", "mine", expect=ExitCode.NO_COORDINATOR)
    assert "The run mine is not up. agentrl up RUN.yaml starts it." in result.err
    (paths.state_dir("mine") / paths.LAST_UP).write_text("{}")
    assert "agentrl up --run mine brings it up again." in shell("status", expect=ExitCode.NO_COORDINATOR).err
