"""Commands that read the store of a run, used while the run is down."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol.commands import COMMANDS
from tests.cli.conftest import Shell

READ = sorted(
    {spec.cli.partition(" --")[0] for spec in COMMANDS.values() if spec.served_by == "steward" and not spec.mutates}
    - {"tune"}  # the coordinator answers this command; the steward only adds counts
)
NAMED = {"eval show": "v1"}
"""The arguments of commands that show something without a document id."""


@pytest.fixture
def down(shell: Shell, tmp_path: Path) -> str:
    """The name of a run that has trained and was taken down."""
    name, run_dir = "shop", tmp_path / "run"
    (shell.home / name).mkdir(mode=0o700)
    run_dir.mkdir()
    made = {"name": name, "uuid": str(uuid.uuid4()), "run_dir": str(run_dir), "created_at": time.time()}
    (shell.home / name / "run.json").write_text(json.dumps(made))
    (run_dir / "config.json").write_text(json.dumps({"name": name, "environments": {"shop": {}}}))
    return name


@pytest.mark.parametrize("verb", READ)
def test_commands_that_read_the_store_name_the_command_that_starts_it(verb: str, shell: Shell, down: str) -> None:
    words = [*verb.split(), *([NAMED.get(verb, "some/id")] if verb.endswith((" show", " html")) else [])]
    for named in ([], ["--run", down]):
        result = shell(*words, *named, "--json", expect=ExitCode.NO_COORDINATOR)
        hint = result.json["error"]["hint"]
        assert hint.startswith(f"agentrl up --run {down} --read-only brings up its store and nothing else")
        assert hint.endswith(f"agentrl down --run {down} ends that.")


def test_run_without_a_store_gets_no_read_only_hint(shell: Shell, down: str, tmp_path: Path) -> None:
    (tmp_path / "run" / "config.json").write_text(json.dumps({"name": down, "environments": {}}))
    result = shell("records", "list", "--run", down, "--json", expect=ExitCode.NO_COORDINATOR)
    assert result.json["error"]["hint"] == f"agentrl up --run {down} starts it."
    result = shell("up", "--run", down, "--read-only", expect=ExitCode.CONFLICT)
    assert "has no store to read from" in result.err
    assert not (shell.home / down / "hosts").exists(), "the refused command starts no process"


@pytest.mark.parametrize("more", [["run.yaml"], ["--set", "training.steps=3"]])
def test_up_read_only_rejects_a_run_file_and_settings(more: list[str], shell: Shell, down: str) -> None:
    result = shell("up", *more, "--run", down, "--read-only", expect=ExitCode.USAGE)
    assert "as it was last" in result.err


def test_up_read_only_needs_an_existing_run(shell: Shell) -> None:
    result = shell("up", "--run", "nosuch", "--read-only", expect=ExitCode.UNKNOWN)
    assert "no run named nosuch" in result.err
    shell("up", "--read-only", expect=ExitCode.USAGE)
