"""Starts the processes of environments in their sandboxes, beside a sampler.

Invariants:
- An environment gets the same sandbox as a tool server with the same section.
- What a sandbox leaves behind is removed when its process has ended.
- All sandboxes of an event loop that have a list of hosts share one network proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.config.serialization import secret_files
from agentrl.config.tool_sandbox import Sandbox
from agentrl.rollout import scorers
from agentrl.sandboxes import sandbox_cgroups, start_advice
from agentrl.sandboxes.environment_programs import launch_of_environment
from agentrl.sandboxes.launch_environment import Launch
from agentrl.sandboxes.network_access import NetworkAccess
from agentrl.sandboxes.sandbox_choice import choose_or_refuse

log = logging.getLogger("environment")
REMOVED_WITHIN_S = 5.0
_SIGNALLED = 128
"""Bubblewrap reports a signal like a shell."""


@dataclass(frozen=True, slots=True)
class SandboxedStart:
    """One start of the process of an environment."""

    launch: Launch
    key: str
    """The key of its sandbox in the run file."""

    @property
    def command(self) -> Sequence[str]:
        return self.launch.command

    @property
    def env(self) -> dict[str, str]:
        return dict(self.launch.env)

    @property
    def cwd(self) -> Path:
        return self.launch.cwd

    def passing(self) -> contextlib.AbstractContextManager[list[int]]:
        return self.launch.passing()

    async def ended(self, code: int) -> str:
        cgroup = self.launch.cgroup
        exceeded = cgroup is not None and cgroup.exceeded_memory
        if cgroup is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REMOVED_WITHIN_S):
                    await cgroup.remove()
            sandbox_cgroups.leave()
        reason = f", because it used more than {self.key}.memory" if exceeded else ""
        return f"its program {_how(code)}{reason}"


@dataclass(frozen=True, slots=True)
class Confined:
    """The sandbox of an environment of a run."""

    name: str
    sandbox: Sandbox
    run_dir: Path
    secret_files: tuple[Path, ...]

    def start(self, command: Sequence[str], file: Path) -> SandboxedStart:
        """`file` and its neighbours can be read. Raises ConfigError if there is no such sandbox here."""
        network = scorers.helper_of("network of environments", _Network).access if self.sandbox.allowed_hosts else None
        launch = launch_of_environment(
            self.name,
            command,
            file,
            self.sandbox,
            run_dir=self.run_dir,
            secret_files=self.secret_files,
            network=network,
        )
        return SandboxedStart(launch, f"environments.{self.name}.sandbox")

    def lacking(self, what: str) -> str:
        """The key of the run file that would allow what failed; empty if the sandbox is not the cause."""
        of_system = "[Errno" in what and self.sandbox.kind != "none"
        return start_advice.lacking(f"environments.{self.name}", what) if of_system else ""


def confined(name: str, config: RunConfig) -> Confined:
    """Raises ConfigError if there is no such sandbox here and it is required."""
    sandbox = config.environments[name].sandbox
    chosen = choose_or_refuse(f"environments.{name}.sandbox", sandbox)
    if chosen.lacks:
        log.warning("The environment %s runs %s.", name, chosen.sentence)
    return Confined(name, sandbox, Path(config.dir), secret_files(config))


class _Network:
    """The network proxy of an event loop."""

    def __init__(self) -> None:
        self.access = NetworkAccess()
        self._task = asyncio.create_task(self.access.run(), name="network of environments")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def _how(code: int) -> str:
    number = -code if code < 0 else code - _SIGNALLED
    if number <= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended with {code}"
