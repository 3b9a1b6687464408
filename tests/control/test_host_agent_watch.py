"""A silent host agent is continued or killed, so that the next one can start."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.control.host_agent_watch import LOOK_EVERY_S, HostAgentWatch
from agentrl.host import procfs
from agentrl.supervision.liveness import Leases
from tests.waiting import eventually

TIMES = SupervisionTimes()


class SilentAgent:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        stat = procfs.read_stat(process.pid)
        assert stat
        self.process = process
        self.identity = procfs.Identity(process.pid, stat.start_ticks, procfs.boot_id())
        self.told: list[str] = []
        self.now = 1000.0
        leases = Leases(TIMES.host_silent_after_s, TIMES.host_silent_after_s)
        leases.begin("a", self.now)
        self.leases = leases
        context: Any = SimpleNamespace(
            host="a",
            run=SimpleNamespace(run_dir="/tmp", uuid="u"),
            host_leases=leases,
            clock=SimpleNamespace(now=lambda: self.now),
            supervisor=SimpleNamespace(times=TIMES),
        )
        self.watch = HostAgentWatch(context, Path("/tmp"), lambda host, pid, what, done: self.told.append(what))

    def silent_for(self, silent_s: float) -> str:
        """Look until this silence; returns the state of the process."""
        while self.now < 1000.0 + silent_s:
            self.now += LOOK_EVERY_S
            self.watch._continue_or_kill(self.identity)
        stat = procfs.read_stat(self.process.pid)
        return stat.state if stat else ""

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        eventually(lambda: (stat := procfs.read_stat(self.process.pid)) is not None and stat.state == "T")


@pytest.fixture
def agent() -> Iterator[SilentAgent]:
    process = subprocess.Popen(["sleep", "1000"])
    yield SilentAgent(process)
    process.kill()
    process.wait()


def test_stopped_agent_is_continued_once_and_then_killed(agent: SilentAgent) -> None:
    agent.stop()
    assert agent.silent_for(TIMES.suspect_after_s - 1.0) == "T"
    assert agent.silent_for(TIMES.suspect_after_s) != "T"
    assert agent.told == ["was stopped by a signal"]
    agent.stop()
    assert agent.silent_for(TIMES.host_silent_after_s - 1.0) == "T"
    agent.silent_for(TIMES.host_silent_after_s)
    assert agent.process.wait(30) == -signal.SIGKILL


def test_hanging_agent_is_killed_after_the_patience_for_a_coordinator(agent: SilentAgent) -> None:
    assert agent.silent_for(TIMES.coordinator_silent_s - 1.0) not in "TZ"
    agent.silent_for(TIMES.coordinator_silent_s)
    assert agent.process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("stopped", [True, False])
def test_agent_is_not_killed_for_time_in_which_the_coordinator_stood_still(agent: SilentAgent, stopped: bool) -> None:
    agent.silent_for(1.0)
    if stopped:
        agent.stop()
    agent.now += 10 * TIMES.coordinator_silent_s
    agent.watch._continue_or_kill(agent.identity)
    assert (agent.process.poll(), agent.told) == (None, [])
    agent.leases.beat("a", agent.now)
    agent.watch._continue_or_kill(agent.identity)
    assert (agent.process.poll(), agent.told) == (None, [])
