"""A program that a command starts, and what interrupts both."""

from __future__ import annotations

import os
import signal

import pytest

from agentrl.cli.child_program import Asked, run_to_its_end


def test_ctrl_c_ends_a_command_that_still_reads_its_configuration() -> None:
    def ask() -> Asked:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt):
        run_to_its_end("this", "The trial", ask, print)
