"""`python -m agentrl.commands_mcp`: the MCP server of a run on standard input and output. `agentrl mcp` starts it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Sequence

from agentrl.client import Client
from agentrl.commands_mcp.server import CommandServer
from agentrl.errors import AgentrlError, RefusedError
from agentrl.protocol.effects import Tier
from agentrl.protocol.messages import Permission

Connect = Callable[[], Client]
TIERS = {tier.name.lower(): tier for tier in (Tier.REVERSIBLE, Tier.DISRUPTIVE, Tier.DESTRUCTIVE)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="agentrl mcp")
    parser.add_argument("--run")
    parser.add_argument("--key")
    parser.add_argument("--up-to", choices=TIERS, help="the highest tier that is executed; needs a key")
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")

    def connect() -> Client:
        return Client.connect(given.run, key_file=given.key)

    try:
        asyncio.run(_serve(connect, TIERS[given.up_to] if given.up_to else None))
    except AgentrlError as error:
        print(f"agentrl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        pass
    return 0


async def _serve(connect: Connect, up_to: Tier | None) -> None:
    from mcp.server.stdio import stdio_server

    if up_to is not None:
        await _check_permission(connect)
    server = CommandServer(connect, up_to).mcp
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _check_permission(connect: Connect) -> None:
    """Refuses a key without permission to execute now, instead of at the first proposal."""
    async with connect() as client:
        if not client.permission.allows(Permission.OPERATOR):
            raise RefusedError(
                f"--up-to needs a key of an operator; this one is of a {client.permission}.",
                hint="An admin makes one with `agentrl keys new NAME --permission operator`.",
            )


if __name__ == "__main__":
    sys.exit(main())
