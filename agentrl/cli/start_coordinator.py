"""Starts the host agent of a run, and waits until its coordinator answers.

Invariants:
- A run that is up on another host is never started here.
- A second start is harmless: the second agent finds the lock of the first.
- The agent has its own session, so a closed terminal does not reach it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli import output
from agentrl.cli.progress import Progress
from agentrl.client import Client
from agentrl.client.run_processes import agents_of, boot_id, coordinator_of, given_up, keepers_of
from agentrl.config import paths
from agentrl.config.run_marker import MARKER, is_written_anew, read_marker
from agentrl.config.this_host import this_host
from agentrl.errors import AgentrlError, ConflictError, ExitCode, NoCoordinatorError, WaitTimeoutError
from agentrl.formatting.sentences import ended

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

START_WITHIN_S = 180.0
"""Long, for a busy host; an agent that cannot start reports that much earlier."""
_LOG_LINES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The directories of a run on this host."""

    name: str
    state_dir: Path
    run_dir: Path

    @property
    def host(self) -> str:
        """The name of this host in the run."""
        return this_host(self.state_dir).name


def place_of(config: RunConfig) -> Place:
    return Place(config.name, paths.state_dir(config.name), Path(config.dir))


def refuse_if_in_use(place: Place) -> None:
    """Raises ConflictError if another host, or another run of this host, uses this run directory."""
    marker = read_marker(place.run_dir)
    if marker is None:
        return
    now = time.time()
    fresh, seen = marker.is_fresh(now), f"seen {max(0.0, now - marker.heartbeat_at):.0f} s ago"
    name, uuid = marker.name, marker.uuid
    if marker.boot_id != boot_id():
        # The damage of two coordinators on one run cannot be undone.
        if fresh or is_written_anew(place.run_dir, marker):
            raise ConflictError(
                f"The run {name} is up on host {marker.host}, {seen}.",
                hint=f"Run `agentrl down` there; if that host is gone, remove {place.run_dir / MARKER}.",
            )
        return
    own = next((run for run in paths.list_runs() if run.name == place.name), None)
    if (own is None or own.uuid != uuid) and (fresh or _is_up(uuid)):
        raise ConflictError(
            f"The directory {place.run_dir} is in use by another run of this host, {name} ({uuid}), {seen}.",
            hint=f"Give this run a `dir` of its own, or run `agentrl down --run {name}` first.",
        )


def _is_up(uuid: object) -> bool:
    """Whether an agent or a coordinator of that run lives here."""
    return any(run.uuid == uuid and keepers_of(paths.state_dir(run.name)) for run in paths.list_runs())


def others_are_up(name: str) -> bool:
    """Whether a command without `--run` could find another run than this."""
    return any(coordinator_of(paths.state_dir(run.name)) for run in paths.list_runs() if run.name != name)


async def answers(name: str, timeout_s: float = 2.0) -> bool:
    """Whether the coordinator of a run answers. A refusal is an answer, and is raised.

    While its host agent lives this waits for the coordinator, which may be starting or restoring its files.
    """
    deadline, state_dir = time.monotonic() + timeout_s, paths.state_dir(name)
    while True:
        try:
            async with Client.connect(run=name, timeout_s=max(0.1, deadline - time.monotonic())):
                return True
        except NoCoordinatorError:
            if time.monotonic() > deadline or not keepers_of(state_dir) or given_up(state_dir):
                return False
        await asyncio.sleep(0.05)


async def is_up(place: Place) -> bool:
    """Whether the run was created here, and its coordinator answers."""
    return paths.read_run(place.state_dir) is not None and await answers(place.name)


async def ensure_coordinator(place: Place, progress: Progress, silent_s: float, within_s: float | None = None) -> None:
    """Start the host agent if no coordinator answers, and wait until one answers, at most `within_s`. The agent
    replaces a silent coordinator after `silent_s`.
    """
    if await answers(place.name):
        return
    silent = coordinator_of(place.state_dir)
    patience_s = START_WITHIN_S + (silent_s if silent else 0.0) if within_s is None else within_s
    deadline = time.monotonic() + patience_s
    if silent is not None:
        output.note(
            f"The coordinator (process {silent.pid}) {silent.condition} and does not answer: "
            f"its host agent replaces it after {silent_s:g} s of silence. The units go on."
        )
    progress.step(f"starting the host agent {place.host}")
    answer = await _start_agent(place)
    while not await answers(place.name, timeout_s=1.0):
        progress.step("waiting for the coordinator to answer")
        if why := given_up(place.state_dir):
            raise NoCoordinatorError(
                f"The coordinator of {place.name} cannot be started: {why}{_evidence(place, '')}",
                hint=f"Then `agentrl down --run {place.name}`, and up again.",
            )
        if not agents_of(place.state_dir):
            # The agent was ending when it was found.
            answer = await _start_agent(place)
        if time.monotonic() > deadline:
            late = f"The coordinator of {place.name} did not answer within {patience_s:g} s."
            if within_s is not None:
                raise WaitTimeoutError(late, hint="It goes on starting; run `agentrl up` again.")
            raise NoCoordinatorError(f"{late}{_evidence(place, answer)}", hint="`agentrl doctor` checks this host.")
        await asyncio.sleep(0.05)


async def _start_agent(place: Place) -> str:
    """The output of the start. Raises if it failed; if another start of the same run came first, that is no failure."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agentrl.placement.local",
        *("--state-dir", str(place.state_dir), "--run-dir", str(place.run_dir)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Ctrl-C in this terminal ends the waiting, not the started processes.
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        # The start cannot be undone, and the next message names the living processes.
        await process.wait()
        raise
    answer = output.decode(errors="replace").strip()
    if process.returncode not in (ExitCode.OK, ExitCode.CONFLICT):
        sentence = ended(f"The host agent could not be started: {answer or f'exit {process.returncode}'}")
        raise AgentrlError(
            f"{sentence}{_evidence(place, '')}",
            hint="`agentrl doctor` checks this host.",
        )
    return answer


def _evidence(place: Place, answer: str) -> str:
    """The last lines of the logs of agent and coordinator."""
    parts = [answer] if answer else []
    for name in ("agent.log", "coordinator.log"):
        file = place.state_dir / "hosts" / place.host / name
        try:
            lines = file.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            continue
        if lines:
            parts.append("\n".join([f"{file}:", *(f"  {line}" for line in lines)]))
    return "".join(f"\n{part}" for part in parts) + ("\n" if parts else "")
