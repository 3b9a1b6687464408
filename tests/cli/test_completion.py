"""Completion: scripts that their shells accept, and candidates that fit."""

from __future__ import annotations

import subprocess

import pytest

from agentrl.protocol import rows
from tests.cli.conftest import Shell
from tests.cli.scripted import Scripted

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.mark.parametrize("name", CHECKS)
def test_the_script_is_valid(shell: Shell, name: str) -> None:
    script = shell("completion", name).out
    assert "agentrl _complete" in script
    subprocess.run(CHECKS[name], input=script, text=True, check=True, timeout=60)


def test_powershell_has_one_too(shell: Shell) -> None:
    assert "Register-ArgumentCompleter" in shell("completion", "powershell").out


def test_bash_completes_a_verb(shell: Shell, tmp_path: object) -> None:
    script = shell("completion", "bash").out
    command = f"""
agentrl() {{ {" ".join(_program())} "$@"; }}
{script}
COMP_WORDS=(agentrl alerts s) COMP_CWORD=2
_agentrl
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", command], env=shell.env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "silence\n"


def test_fish_completes_a_verb(shell: Shell) -> None:
    script = shell("completion", "fish").out
    command = f"function agentrl; {' '.join(_program())} $argv; end\n{script}\ncomplete -C 'agentrl alerts s'"
    done = subprocess.run(
        ["fish", "-c", command], env=shell.env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "silence\n"


def test_zsh_completes_a_verb(shell: Shell) -> None:
    """`compadd` works only inside zsh's own completion, so it is replaced by what it would have been told."""
    script = shell("completion", "zsh").out
    command = f"""
compdef() {{ true }}
compadd() {{ shift; print -r -- "$@" }}
agentrl() {{ {" ".join(_program())} "$@" }}
{script}
words=(agentrl alerts s) CURRENT=3
_agentrl
"""
    done = subprocess.run(
        ["zsh", "-f", "-c", command], env=shell.env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "silence\n"


def _program() -> list[str]:
    from tests.cli.conftest import PROGRAM

    return PROGRAM


def completed(shell: Shell, *words: str) -> list[str]:
    return shell("_complete", "--", *words).out.splitlines()


def test_candidates_come_from_the_verbs(shell: Shell) -> None:
    assert completed(shell, "sta") == ["stacks", "staleness", "status"]
    assert completed(shell, "keys", "") == ["list", "new", "revoke"]
    assert completed(shell, "scale", "--no") == ["--no-color", "--no-wait"]
    assert completed(shell, "keys", "new", "x", "--permission", "o") == ["operator"]
    assert completed(shell, "completion", "f") == ["fish"]
    assert completed(shell, "daemon", "h") == ["host"]
    assert completed(shell, "restart", "") == [], "nothing is up, and nothing is said about it"
    assert "_complete" not in completed(shell, "")


def test_candidates_come_from_the_run(shell: Shell, coordinator: Scripted) -> None:
    for slot in range(2):
        coordinator.rows[f"unit/web-{slot}"] = rows.UnitRow(f"web-{slot}", "web", "sidecar", rows.UnitState.READY)
    coordinator.rows["group/web"] = rows.GroupRow("web", "sidecar", 2)
    assert completed(shell, "restart", "web") == ["web", "web-0", "web-1"]
    assert completed(shell, "scale", "") == ["web"]
    assert completed(shell, "logs", "web-0", "") == []
    assert completed(shell, "status", "--run", "d") == ["demo"]


@pytest.mark.parametrize(
    "words",
    [
        ("--run", "shop", "logs", "sam"),
        ("--run=shop", "logs", "sam"),
        ("logs", "--run", "shop", "sam"),
        ("logs", "--run=shop", "sam"),
        ("logs", "--run", "=", "shop", "sam"),  # as bash has it
        ("--json", "logs", "--run", "shop", "--follow", "sam"),
    ],
)
def test_the_run_that_the_line_names_is_the_one_that_is_asked(
    shell: Shell, coordinator: Scripted, words: tuple[str, ...]
) -> None:
    """Another one is up as well, so that without it nothing could be said."""
    with Scripted(shell.home, name="shop") as shop:
        shop.rows["unit/sampler-0"] = rows.UnitRow("sampler-0", "sampler", "sampler", rows.UnitState.READY)
        coordinator.rows["unit/sample-7"] = rows.UnitRow("sample-7", "sample", "sidecar", rows.UnitState.READY)
        assert completed(shell, *words) == ["sampler-0"]


def test_behind_a_run_there_are_its_groups_verbs_and_options(shell: Shell, coordinator: Scripted) -> None:
    with Scripted(shell.home, name="shop") as shop:
        shop.rows["group/sampler"] = rows.GroupRow("sampler", "sampler", 2)
        assert completed(shell, "--run", "shop", "scale", "") == ["sampler"]
        assert completed(shell, "--run", "shop", "keys", "re") == ["revoke"]
        assert completed(shell, "scale", "--run", "shop", "--no") == ["--no-color", "--no-wait"]
        assert completed(shell, "logs", "--run=s") == ["--run=shop"]
        assert completed(shell, "logs", "--run", "=") == ["demo", "shop"]
        assert completed(shell, "--run", "") == ["demo", "shop"]
        assert completed(shell, "--run", "gone", "scale", "") == []
