"""Whom the verbs ask that only read: the coordinator, and after the end of a run what the run has left.

Invariants: what was read from files is never taken for the word of a coordinator: a line on stderr says so. What only
the store could tell is not read behind the run's back: the command is named that brings the store up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agentrl.cli import output
from agentrl.cli.verbs import Cli
from agentrl.client import Client
from agentrl.client.discovery import hint_of
from agentrl.client.living import keepers_of
from agentrl.client.remains import Remains
from agentrl.errors import NoCoordinatorError

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
                raise
            output.note(f"{nobody.message} This is what {found.name} has left in its files.")
        yield found


def how_to_read(named: str | None) -> str:
    """Which command brings up the store of a run that is down, and which one ends it; "" where none would."""
    found = Remains.find(named)
    if found is None:
        return "" if named else "agentrl up --run NAME --read-only brings up the store of one that is down."
    if keepers_of(found.state_dir) or not found.has_store:
        return ""
    return (
        f"agentrl up --run {found.name} --read-only brings up its store and nothing else, to read from; "
        f"agentrl down --run {found.name} ends that."
    )


def living(found: Reader) -> Client:
    """Raises NoCoordinatorError where nobody is left who could tell what comes next."""
    if isinstance(found, Client):
        return found
    raise NoCoordinatorError(
        f"Nobody answers for {found.name}, so there is nothing to follow.", hint=hint_of(found.state_dir)
    )
