"""Verbs about this host: what the doctor looks at, and a directory in which no run can live."""

from __future__ import annotations

from pathlib import Path

from agentrl.errors import ExitCode
from tests.cli.conftest import Said, Shell


def run_file(shell: Shell, name: str, text: str) -> Path:
    path = shell.home.parent / name
    path.write_text(text)
    return path


def looked_at(said: Said) -> dict[str, str]:
    return {check["name"]: check["sentence"] for check in said.json}


def test_the_doctor_looks_at_the_run_file_that_is_named_or_here(shell: Shell) -> None:
    assert "run file" not in looked_at(shell("doctor", "--json", expect=None))
    run_file(shell, "run.yaml", "name: here\n")
    other = run_file(shell, "other.yaml", "name: other\n")
    assert "the run here" in looked_at(shell("doctor", "--json", expect=None))["run file"]
    assert "the run other" in looked_at(shell("doctor", str(other), "--json", expect=None))["run file"]
    run_file(shell, "run.yaml", "nome: here\n")
    said = shell("doctor", "--json", expect=ExitCode.UNHEALTHY)
    assert "nome" in looked_at(said)["run file"]


def test_a_run_in_a_directory_that_cannot_be_made_is_refused_and_leaves_nothing(shell: Shell) -> None:
    path = run_file(shell, "run.yaml", "name: nowhere\ndir: /proc/nope/x\nsidecars: {web: {command: sleep 1000}}\n")
    said = shell("up", str(path), expect=ExitCode.DISK)
    assert "/proc/nope/x cannot be made" in said.err
    assert list(shell.home.iterdir()) == []
