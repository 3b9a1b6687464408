"""Defines the command `hosts forget`."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode


def register(app: typer.Typer) -> None:
    hosts = group(app, "hosts", "The machines of the run; `status` lists them.")
    add_command(hosts, "forget", acts=True)(forget)


async def forget(
    cli: Cli, host: Annotated[str, typer.Argument(metavar="HOST", help="A host that does not answer any more.")]
) -> ExitCode:
    """Confirm that a silent host is gone for good.

    Its units are dead then, so they may be started elsewhere, and `down` needs no report from it.
    """
    from agentrl.cli.execute import act
    from agentrl.protocol.commands import ForgetHost

    return await act(cli, "forget_host", ForgetHost(host=host))
