"""Whom the verbs ask that only read: the coordinator, and after the end of a run what the run has left.

Invariants: what was read from files is never taken for the word of a coordinator: a line on stderr says so. What only
the store could tell is not read behind the run's back: the command is named that brings the store up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agentrl.cli import output
from agentrl.cli.options import Cli
from agentrl.client import Client
from agentrl.client.discovery import hint_of
from agentrl.client.offline_run import Remains
from agentrl.client.run_processes import keepers_of, left_up
from agentrl.config.paths import LAST_UP
from agentrl.errors import AgentrlError, NoCoordinatorError
from agentrl.protocol.rows import OperationRow

_LAST_OPERATIONS = 20
Reader = Client | Remains


@asynccontextmanager
async def reader(cli: Cli) -> AsyncIterator[Reader]:
    """The coordinator of the run that is meant, or what the run has left on this host."""
    async with AsyncExitStack() as stack:
        found: Reader | None
        try:
            found = await stack.enter_async_context(cli.connect())
        except NoCoordinatorError as nobody:
            found = None if cli.remote else Remains.find(cli.named)
            if found is None:
                also = " With --run NAME this command reads what that one has left." if not cli.named else ""
                raise NoCoordinatorError(nobody.message, hint=f"{nobody.hint}{also}") from None
            output.note(f"{nobody.message} This is what {found.name} has left in its files.")
        yield found


async def explain_no_coordinator(cli: Cli, error: NoCoordinatorError) -> NoCoordinatorError:
    """Of a run that was taken down: since when it is down, and how it is read or brought up again."""
    found = None if cli.remote else Remains.find(cli.named)
    if found is None or left_up(found.state_dir) or keepers_of(found.state_dir):
        return error
    down_at = 0.0
    with contextlib.suppress(AgentrlError):
        happened = await found.events(("operation",), limit=_LAST_OPERATIONS)
        downs = [row for row in happened if isinstance(row, OperationRow) and row.command == "down"]
        down_at = max((row.ended_at for row in downs), default=0.0)
    since = f": it was taken down {output.age(time.time() - down_at)} ago, {output.moment(down_at)}" if down_at else ""
    again = f"agentrl up --run {found.name}"
    hints = [f"{again} brings it up again" if (found.state_dir / LAST_UP).exists() else "agentrl up RUN.yaml starts it"]
    if found.has_store:
        hints.append(f"{again} --read-only only what its records are read from")
    if down_at:
        option = f"--run {found.name}"
        hints.append(f"agentrl logs {option} UNIT and agentrl events {option} read what it has left")
    return NoCoordinatorError(f"The run {found.name} is not up{since}.", hint=f"{'; '.join(hints)}.")


def living(found: Reader) -> Client:
    """Raises NoCoordinatorError where nobody is left who could tell what comes next."""
    if isinstance(found, Client):
        return found
    raise NoCoordinatorError(
        f"Nobody answers for {found.name}, so there is nothing to follow.", hint=hint_of(found.state_dir)
    )
