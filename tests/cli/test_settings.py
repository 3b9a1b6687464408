"""What the command line shows of a run file, and what it advises."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell

RUN_FILE = """
name: demo
sidecars:
  web:
    command: sleep 1000
    env: {API_KEY: hunter2, HF_TOKEN: env:MY_TOKEN, MODE: fast}
"""


@pytest.fixture(autouse=True)
def run_file(shell: Shell) -> None:
    (shell.home.parent / "run.yaml").write_text(RUN_FILE)


@pytest.mark.parametrize("how", [(), ("--sources",), ("--given",), ("--json",), ("--json", "--sources")])
def test_a_secret_that_is_written_out_is_not_shown(shell: Shell, how: tuple[str, ...]) -> None:
    said = shell("config", "show", *how)
    assert "hunter2" not in said.out + said.err
    assert "(hidden)" in said.out
    assert "env:MY_TOKEN" in said.out
    assert "fast" in said.out


def test_check_advises_a_reference_and_does_not_refuse(shell: Shell) -> None:
    said = shell("config", "check")
    assert "run.yaml:6: sidecars.web.env.API_KEY looks like a secret" in said.err
    assert "env:NAME or file:PATH" in said.err
    assert "with 1 units is valid" in said.out
    (advice,) = shell("config", "check", "--json").json["advice"]
    assert "API_KEY" in advice
    assert "HF_TOKEN" not in advice
