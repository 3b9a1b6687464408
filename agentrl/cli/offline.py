"""Reads a run through its coordinator, or from its files when no coordinator answers.

Invariants:
- If the data comes from files, a note on stderr says so.
- The store is not read without a coordinator; the hint names the command that starts it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agentrl.cli import output
from agentrl.cli.options import Cli
from agentrl.client import Client
from agentrl.client.discovery import hint_of, state_of
from agentrl.client.offline_run import OfflineRun
from agentrl.client.run_processes import keepers_of, left_up
from agentrl.config.paths import LAST_UP
from agentrl.errors import AgentrlError, NoCoordinatorError, UsageError
from agentrl.protocol.rows import OperationRow

_LAST_OPERATIONS = 20
Reader = Client | OfflineRun


def run_on_this_host(cli: Cli, *, not_remote: str, again: str) -> OfflineRun:
    """The run that the command means. `not_remote` refuses a key file; `again` is the command to suggest, with a
    name."""
    if cli.remote:
        raise UsageError(not_remote)
    found = OfflineRun.find(cli.named)
    if found is None:
        if cli.named:
            state_of(cli.named)
        raise UsageError("No run is named, and this host has none or several.", hint=again)
    return found


@asynccontextmanager
async def reader(cli: Cli) -> AsyncIterator[Reader]:
    """A connection to the coordinator, or the files of the run on this host if no coordinator answers."""
    async with AsyncExitStack() as stack:
        found: Reader | None
        try:
            found = await stack.enter_async_context(cli.connect())
        except NoCoordinatorError as error:
            found = None if cli.remote else OfflineRun.find(cli.named)
            if found is None:
                also = " With --run NAME this command reads the files of that run." if not cli.named else ""
                raise NoCoordinatorError(error.message, hint=f"{error.hint}{also}") from None
            output.note(f"{error.message} These are the files of {found.name}.")
        yield found


async def explain_no_coordinator(cli: Cli, error: NoCoordinatorError) -> NoCoordinatorError:
    """Return an error that tells since when the run is down, and how to read it or bring it up; if that is not known,
    the same error.
    """
    found = None if cli.remote else OfflineRun.find(cli.named)
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
        hints.append(f"agentrl logs {option} UNIT and agentrl events {option} read its files")
    return NoCoordinatorError(f"The run {found.name} is not up{since}.", hint=f"{'; '.join(hints)}.")


def living(found: Reader) -> Client:
    """The connection to the coordinator. Raises NoCoordinatorError if only the files of the run are left."""
    if isinstance(found, Client):
        return found
    raise NoCoordinatorError(
        f"No coordinator answers for {found.name}, so there is nothing to follow.", hint=hint_of(found.state_dir)
    )
