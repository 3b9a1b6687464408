"""Completion in bash, zsh and fish, and the candidates for every position."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time

import pytest

from agentrl.protocol import rows
from agentrl.protocol.data_commands import Page
from tests.cli.conftest import PROGRAM, Shell
from tests.cli.scripted import Scripted
from tests.waiting import PATIENCE_S

IN_BASH = """
{script}
COMP_WORDS=({words}) COMP_CWORD={at}
_agentrl_completion agentrl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
IN_ZSH = """\
autoload -Uz compinit && compinit -u -D && eval "$(agentrl completion zsh)" && print -n READ''Y
"""


@pytest.fixture
def with_program(shell: Shell) -> Shell:
    """The same home with a program `agentrl` on its path."""
    bin = shell.home.parent / "bin"
    bin.mkdir()
    program = bin / "agentrl"
    program.write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    shell.env["PATH"] = f"{bin}:{shell.env['PATH']}"
    return shell


def in_bash(shell: Shell, *words: str) -> list[str]:
    script = shell("completion", "bash").out
    line = " ".join(f"'{word}'" for word in ("agentrl", *words))
    return _run(shell, ["bash", "-c", IN_BASH.format(script=script, words=line, at=len(words))])


def in_fish(shell: Shell, *words: str) -> list[str]:
    line = " ".join(("agentrl", *words))
    return _run(shell, ["fish", "-c", f"agentrl completion fish | source; complete -C '{line}'"])


def _run(shell: Shell, command: list[str]) -> list[str]:
    env = {**shell.env, "HOME": str(shell.home.parent)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert not done.stderr
    return sorted(done.stdout.split())


def in_zsh(shell: Shell, *words: str) -> list[str]:
    """Completes a line in an interactive zsh. Returns the only candidate as zsh writes it into the line."""
    child, terminal = pty.fork()
    if child == 0:
        env = {**shell.env, "HOME": str(shell.home.parent), "PS1": "", "TERM": "dumb"}
        os.execvpe("zsh", ["zsh", "-f", "-i"], env)
    try:
        os.write(terminal, IN_ZSH.encode())
        _until(terminal, r"READY")
        line = " ".join(("agentrl", *words))
        os.write(terminal, f"{line}\t".encode())
        # After a single candidate, zsh appends a space.
        shown = _until(terminal, rf"{re.escape(line)}\S+ ")
        return [re.findall(rf"{re.escape(line)}\S+ ", shown)[-1].split()[-1]]
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def _until(terminal: int, pattern: str) -> str:
    shown, deadline = "", time.monotonic() + 2 * PATIENCE_S
    while not re.search(pattern, shown):
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


@pytest.mark.parametrize("complete", [in_bash, in_fish, in_zsh])
def test_shell_completes_commands_and_names_of_the_run(
    with_program: Shell, coordinator: Scripted, complete: object
) -> None:
    coordinator.rows["unit/web-0"] = rows.UnitRow("web-0", "web", "sidecar", rows.UnitState.READY)
    assert complete(with_program, "alerts", "s") == ["silence"]  # type: ignore[operator]
    assert complete(with_program, "logs", "w") == ["web-0"]  # type: ignore[operator]
    assert complete(with_program, "status", "--run", "d") == ["demo"]  # type: ignore[operator]


@pytest.mark.parametrize("complete", [in_fish, in_zsh])
def test_completed_value_after_an_equals_sign_keeps_its_option(
    with_program: Shell, coordinator: Scripted, complete: object
) -> None:
    assert complete(with_program, "logs", "--run=d") == ["--run=demo"]  # type: ignore[operator]


def test_powershell_has_a_script(shell: Shell) -> None:
    assert "Register-ArgumentCompleter" in shell("completion", "powershell").out


def completed(shell: Shell, *words: str) -> list[str]:
    """The candidates of typer's script for bash, which splits words at `=`."""
    words = tuple(part for word in words for part in re.split("(?<=.)(=)", word) if part or not word)
    env = {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(("agentrl", *words))}
    result = shell(**env, COMP_CWORD=str(len(words)))
    assert not result.err
    return sorted(result.out.split())


def test_candidates_come_from_the_commands(shell: Shell) -> None:
    assert completed(shell, "sta") == ["stacks", "staleness", "status"]
    assert completed(shell, "keys", "") == ["list", "new", "revoke", "rotate"]
    assert completed(shell, "scale", "--no") == ["--no-color", "--no-wait"]
    assert completed(shell, "keys", "new", "x", "--permission", "o") == ["operator"]
    assert completed(shell, "completion", "f") == ["fish"]
    assert completed(shell, "daemon", "h") == ["host"]
    assert completed(shell, "restart", "") == [], "no run is up: no candidates and no error"


def test_candidates_come_from_the_run(shell: Shell, coordinator: Scripted) -> None:
    for slot in range(2):
        coordinator.rows[f"unit/web-{slot}"] = rows.UnitRow(f"web-{slot}", "web", "sidecar", rows.UnitState.READY)
    coordinator.rows["group/web"] = rows.GroupRow("web", "sidecar", 2)
    assert completed(shell, "restart", "web") == ["web", "web-0", "web-1"]
    assert completed(shell, "scale", "") == ["web"]
    assert completed(shell, "logs", "web-0", "") == []
    assert completed(shell, "runs", "forget", "") == ["demo"]
    coordinator.answers["list_calls"] = lambda args: Page(({"id": "g#r1.s0.a1/001.0"},))
    coordinator.answers["list_replays"] = lambda args: Page(({"id": "g#r1.s0.a1/001.0~ab"},))
    coordinator.answers["list_records"] = lambda args: Page(({"id": "g#r1.s0.a1"},))
    assert completed(shell, "replay", "") == ["g#r1.s0.a1/001.0"]
    assert completed(shell, "replays", "keep", "") == ["g#r1.s0.a1/001.0~ab"]
    assert completed(shell, "replays", "show", "") == ["g#r1.s0.a1/001.0~ab"]
    assert completed(shell, "fork", "") == ["g#r1.s0.a1"], "no units"


@pytest.mark.parametrize(
    "words",
    [
        ("--run", "shop", "logs", "sam"),
        ("--run=shop", "logs", "sam"),
        ("logs", "--run", "shop", "sam"),
        ("logs", "--run=shop", "sam"),
        ("--json", "logs", "--run", "shop", "--follow", "sam"),
    ],
)
def test_run_named_on_the_line_gives_the_candidates(
    shell: Shell, coordinator: Scripted, words: tuple[str, ...]
) -> None:
    """Another run is up as well, so without the name there are no candidates."""
    with Scripted(shell.home, name="shop") as shop:
        shop.rows["unit/sampler-0"] = rows.UnitRow("sampler-0", "sampler", "sampler", rows.UnitState.READY)
        coordinator.rows["unit/sample-7"] = rows.UnitRow("sample-7", "sample", "sidecar", rows.UnitState.READY)
        assert completed(shell, *words) == ["sampler-0"]


def test_groups_commands_and_options_are_completed_after_a_run(shell: Shell, coordinator: Scripted) -> None:
    with Scripted(shell.home, name="shop") as shop:
        shop.rows["group/sampler"] = rows.GroupRow("sampler", "sampler", 2)
        assert completed(shell, "--run", "shop", "scale", "") == ["sampler"]
        assert completed(shell, "--run", "shop", "keys", "re") == ["revoke"]
        assert completed(shell, "scale", "--run", "shop", "--no") == ["--no-color", "--no-wait"]
        assert completed(shell, "logs", "--run=s") == ["shop"]
        assert completed(shell, "logs", "--run=") == ["demo", "shop"]
        assert completed(shell, "--run", "") == ["demo", "shop"]
        assert completed(shell, "--run", "gone", "scale", "") == []
