"""Whom the verbs ask that only read: the coordinator, and after the end of a run what the run has left.

Invariant: what was read from files is never taken for the word of a coordinator: a line on stderr says so.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agentrl.cli import output
from agentrl.cli.verbs import RUN_VARIABLE, Cli
from agentrl.client import Client
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
            found = None if cli.remote else Remains.find(cli.run or os.environ.get(RUN_VARIABLE))
            if found is None:
                raise
            output.note(f"{nobody.message} This is what {found.name} has left in its files.")
        yield found


def living(found: Reader) -> Client:
    """Raises NoCoordinatorError where nobody is left who could tell what comes next."""
    if isinstance(found, Client):
        return found
    raise NoCoordinatorError(
        f"Nobody answers for {found.name}, so there is nothing to follow.", hint="agentrl up starts it again."
    )
