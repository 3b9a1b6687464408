"""Keeps a run up in the foreground (`agentrl up --foreground`): the main process of a container or of a service.

Host agent and coordinator restart each other, so this process only waits, prints changes, and passes SIGTERM on.

Invariants:
- SIGTERM lets this host leave: its units finish, desired state stays, and the next start brings the same units up.
- With `--unless-down` a run that was taken down stays down, even if its container is started again.
- The exit code is 0 after a signal or `agentrl down`, and 1 if agent and coordinator have both died.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

from agentrl.cli import output
from agentrl.cli.options import Cli
from agentrl.cli.start_coordinator import Place
from agentrl.cli.status import follow_changes
from agentrl.client import Client
from agentrl.client.run_processes import agents_of, keepers_of, left_up
from agentrl.config import paths
from agentrl.config.containers import LEAVE_VARIABLE
from agentrl.errors import AgentrlError, ExitCode

LEAVE_WITHIN_S = "25"
"""Kubernetes gives 30 s by default."""
_POLL_S = 0.2
_AGAIN_S = 1.0
_OTHERS_END_WITHIN_S = 5.0


async def keep_up(place: Place, cli: Cli, bring_up: Callable[[], Awaitable[ExitCode]] | None) -> ExitCode:
    """Bring the run up and return when it has ended here. Without `bring_up` another command brings it up."""
    os.environ.setdefault(LEAVE_VARIABLE, LEAVE_WITHIN_S)
    if bring_up is None:
        output.note(f"The run {place.name} was taken down. It stays down until `agentrl up` is called here.")
    elif (code := await bring_up()) is not ExitCode.OK:
        return code
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    printing = asyncio.create_task(_print_changes(cli, place), name="changes")
    try:
        return await _until_it_ended(place, stop)
    finally:
        printing.cancel()
        await asyncio.gather(printing, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def was_taken_down(place: Place) -> bool:
    """Whether the last command on the whole run was `agentrl down`."""
    state_dir = place.state_dir
    return (state_dir / paths.LAST_UP).exists() and not left_up(state_dir) and not keepers_of(state_dir)


async def _until_it_ended(place: Place, stop: asyncio.Event) -> ExitCode:
    told: set[int] = set()
    lived = False
    while True:
        _reap()
        keepers = keepers_of(place.state_dir)
        lived = lived or bool(keepers)
        if stop.is_set():
            if not keepers:
                return ExitCode.OK
            # The coordinator may have started another agent meanwhile.
            for agent in agents_of(place.state_dir):
                if agent.pid not in told:
                    told.add(agent.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(agent.pid, signal.SIGTERM)
        elif lived and not keepers:
            if left_up(place.state_dir):
                output.note(f"The host agent and the coordinator of {place.name} are both dead.")
                return ExitCode.FAILED
            await _let_others_report()
            return ExitCode.OK
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait() if not stop.is_set() else asyncio.sleep(_POLL_S), _POLL_S)


async def _let_others_report() -> None:
    """Waits for other processes to report. When process 1 ends, all others end too, even an `agentrl down` that still
    has to print its result."""
    deadline = asyncio.get_running_loop().time() + _OTHERS_END_WITHIN_S
    while os.getpid() == 1 and asyncio.get_running_loop().time() < deadline:
        _reap()
        if all(name == "1" for name in os.listdir("/proc") if name.isdecimal()):
            return
        await asyncio.sleep(_POLL_S)


def _reap() -> None:
    """Reaps orphans: process 1 of a container is the parent of every orphan there."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def _print_changes(cli: Cli, place: Place) -> None:
    while True:
        with contextlib.suppress(AgentrlError):
            async with Client.connect(run=place.name, timeout_s=5.0) as client:
                await follow_changes(cli, client)
        await asyncio.sleep(_AGAIN_S)
