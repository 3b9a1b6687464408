"""Defines the command `mcp`, which replaces this process by the MCP server of the commands."""

from __future__ import annotations

import enum
import os
import sys
from typing import Annotated

import typer

from agentrl.cli.options import RUN_VARIABLE, Cli, add_command
from agentrl.errors import ExitCode, UsageError


class UpTo(enum.StrEnum):
    REVERSIBLE = "reversible"
    DISRUPTIVE = "disruptive"
    DESTRUCTIVE = "destructive"


def register(app: typer.Typer) -> None:
    add_command(app, "mcp")(mcp)


def mcp(
    cli: Cli,
    up_to: Annotated[
        UpTo | None,
        typer.Option("--up-to", help="Execute proposals up to this tier; needs --key.", show_default=False),
    ] = None,
) -> ExitCode:
    """Serve the commands to an assistant as tools of MCP."""
    if up_to is not None and not cli.remote:
        raise UsageError(
            "--up-to needs --key, so that the audit names the assistant.",
            hint="agentrl keys new NAME --permission operator",
        )
    if cli.json:
        raise UsageError("The MCP server has no --json; all its answers are JSON.")
    run = cli.run or os.environ.get(RUN_VARIABLE)
    key = cli.key or (os.environ.get("AGENTRL_KEY") if cli.remote else None)
    aim = ["--key", str(key)] if key else ["--run", run] if run else []
    limit = ["--up-to", up_to.value] if up_to else []
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "agentrl.commands_mcp", *aim, *limit])
