"""Defines the command `down`, which stops everything and proves that nothing is left."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode


def register(app: typer.Typer) -> None:
    add_command(app, "down", acts=True)(down)


async def down(
    cli: Cli,
    now: Annotated[bool, typer.Option("--now", help="Kill instead of letting units finish.")] = False,
) -> ExitCode:
    """Stop everything and prove that nothing is left."""
    from agentrl.cli import down_transaction

    return await down_transaction.end_run(cli, now=now)
