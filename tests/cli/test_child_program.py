"""A program that a command starts, and what interrupts both."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.child_program import Asked, at_hand, run_to_its_end
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError


def test_half_a_message_of_a_program_that_was_killed_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed_program.py").write_text(
        "import os, signal, sys\n"
        "sys.stdin.readline()\n"
        """os.write(1, b'{"event": "ended"}\\n{"event": "en')\n"""
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shown: list[dict[str, Any]] = []
    config = RunConfig.model_validate({"name": "demo", "sidecars": {"web": {"command": ["true"]}}})
    with pytest.raises(AgentrlError, match="The trial ended with status -9"):
        run_to_its_end("killed_program", "The trial", at_hand(config, {}), shown.append)
    assert shown == [{"event": "ended"}]


def test_ctrl_c_ends_a_command_that_still_reads_its_configuration() -> None:
    def ask() -> Asked:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt):
        run_to_its_end("this", "The trial", ask, print)
