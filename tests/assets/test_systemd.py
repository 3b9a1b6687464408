"""The systemd unit of a host agent keeps its units in its cgroup, and its command line is one that agentrl accepts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from agentrl.errors import ExitCode

UNIT = Path(__file__).parents[2] / "assets/systemd/agentrl-host@.service"


def settings() -> dict[str, str]:
    text = UNIT.read_text().replace("\\\n", " ")
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def test_service_delegates_its_cgroup_and_leaves_units_alive() -> None:
    # Without delegation, systemd moves the cgroups of units, and the agent cannot prove that they are empty.
    found = settings()
    assert found["Delegate"] == "yes"
    assert found["KillMode"] == "process", "units outlive their agent, so that the next one adopts them"
    assert found["OOMPolicy"] == "continue", "one unit without memory must not end the others"


def test_service_is_not_restarted_when_a_restart_cannot_help() -> None:
    final = {int(code) for code in settings()["RestartPreventExitStatus"].split()}
    assert final == {ExitCode.CONFLICT, ExitCode.VERSION, ExitCode.CONFIG}


def test_service_has_only_options_that_the_host_agent_knows() -> None:
    command = [sys.executable, "-m", "agentrl", "daemon", "host", "--help"]
    known = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    options = re.findall(r"--[a-z-]+", settings()["ExecStart"])
    assert options
    assert not [option for option in options if option not in known]
