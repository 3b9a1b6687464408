"""Closed or full output streams cause no traceback, and errors go to a stream that still works."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.cli.conftest import PROGRAM, Shell


def in_bash(shell: Shell, line: str) -> subprocess.CompletedProcess[str]:
    command = f'agentrl() {{ {" ".join(PROGRAM)} "$@"; }}; {line}'
    done = subprocess.run(
        ["bash", "-c", command], env=shell.env, cwd=shell.home.parent, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_output_to_a_closed_stream_is_discarded(shell: Shell, closed: str) -> None:
    assert in_bash(shell, f"agentrl runs {closed}").returncode == 0
    assert in_bash(shell, f"agentrl restart web-0 {closed}").returncode == 3


@pytest.mark.parametrize("more", ["", "--json"])
def test_full_disk_behind_stdout_is_reported_on_stderr(shell: Shell, more: str) -> None:
    done = in_bash(shell, f"agentrl runs {more} >/dev/full")
    assert (done.returncode, done.stderr.strip()) == (11, "agentrl: No space left on device.")


def test_error_as_json_is_on_stdout(shell: Shell) -> None:
    done = in_bash(shell, "agentrl restart web-0 --json")
    assert json.loads(done.stdout)["error"]["name"] == "no_coordinator"
