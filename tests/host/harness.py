"""An agent inside the test's own process, with all its messages in a list."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agentrl.host import procfs
from agentrl.host.agent import Agent
from agentrl.host.periodic_tasks import Intervals
from agentrl.host.spawn_environment import Home
from agentrl.protocol import messages
from agentrl.protocol.message_base import Message
from agentrl.protocol.specs import GroupSpec, Role
from tests.waiting import aeventually, eventually

M = TypeVar("M", bound=Message)

QUICK = Intervals(stats_s=0.1, memory_check_s=0.05, strays_every=1)


@dataclass
class Sent:
    """The messages of the agent."""

    messages: list[Message] = field(default_factory=list)
    listening: bool = True

    def __call__(self, message: Message) -> bool:
        if self.listening:
            self.messages.append(message)
            if isinstance(message, messages.Exited) and message.group_empty:
                self.messages.append(messages.GroupEmpty(message.unit, message.incarnation))
        return self.listening

    def all(self, kind: type[M], unit: str = "", incarnation: int = 0) -> list[M]:
        return [
            message
            for message in self.messages
            if isinstance(message, kind)
            and (not unit or getattr(message, "unit", "") == unit)
            and (not incarnation or getattr(message, "incarnation", 0) == incarnation)
        ]

    async def one(
        self,
        kind: type[M],
        unit: str = "",
        incarnation: int = 0,
        *,
        that: Callable[[M], bool] = lambda _: True,
    ) -> M:
        """Wait for the first such message."""

        def found() -> M | None:
            return next((m for m in self.all(kind, unit, incarnation) if that(m)), None)

        return await aeventually(found, what=f"{kind.__name__} of {unit or 'any unit'}")


@dataclass
class Bench:
    """The home of an agent. Each call of `agent()` starts the next agent with the same ledger."""

    home: Home
    sent: Sent = field(default_factory=Sent)

    @contextlib.asynccontextmanager
    async def agent(self, *, use_cgroups: bool = True, times: Intervals = QUICK) -> AsyncIterator[Agent]:
        agent = Agent(self.home, self.sent, use_cgroups=use_cgroups, times=times)
        agent.start()
        agent.connected()
        agent.receive(messages.Welcome(epoch="e", run=self.home.run, run_name="test", now_ct=0.0, heartbeat_s=0.1))
        try:
            yield agent
        finally:
            await agent.close()

    @contextlib.asynccontextmanager
    async def tidy_agent(self, *, use_cgroups: bool = True, times: Intervals = QUICK) -> AsyncIterator[Agent]:
        """An agent whose units, and the helper that started them, are all killed at the end."""
        async with self.agent(use_cgroups=use_cgroups, times=times) as agent:
            try:
                yield agent
            finally:
                await end_all(agent)
                helper = procfs.read_stat(agent.processes._spawner.pid)
        if helper is not None:
            # A remaining helper ends soon, but until then the next test would find it among its descendants.
            identity = procfs.Identity(helper.pid, helper.start_ticks, procfs.boot_id())
            await aeventually(lambda: not identity.alive(), what="the end of the spawn helper")


async def end_all(agent: Agent) -> None:
    for life in agent.incarnations.values():
        life.kill_tree()
    await aeventually(lambda: all(life.over for life in agent.incarnations.values()), what="the end of all units")


def home(tmp_path: Path) -> Home:
    run_dir, state_dir = tmp_path / "run", tmp_path / "state"
    run_dir.mkdir(exist_ok=True)
    state_dir.mkdir(exist_ok=True)
    return Home(str(uuid.uuid4()), "h1", state_dir, run_dir)


def spawn(unit: str, *command: str, incarnation: int = 1, **spec: object) -> messages.Spawn:
    group = GroupSpec(name=unit.rpartition("-")[0], role=Role.SIDECAR, command=command, **spec)  # type: ignore[arg-type]
    return messages.Spawn(unit, incarnation, "token", group, "ipc:///nowhere")


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


SLEEP = ("sleep", "1000")


def identity_of(pid: int) -> procfs.Identity:
    """The identity of a living process."""
    stat = procfs.read_stat(pid)
    assert stat
    return procfs.Identity(pid, stat.start_ticks, procfs.boot_id())


def marked_sleeper(home: Home, incarnation: str, *, host: str = "h1") -> subprocess.Popen[bytes]:
    """A process with the marks of a unit that no agent has started."""
    marks = {"AGENTRL_RUN": home.run, "AGENTRL_INCARNATION": incarnation, "AGENTRL_HOST": host}
    process = subprocess.Popen(SLEEP, start_new_session=True, env={**os.environ, **marks})
    eventually(lambda: procfs.marks(process.pid), what="the environment of a process that is being executed")
    return process
