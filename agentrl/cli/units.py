"""Defines the commands `scale`, `drain`, `restart`, `stop`, `pause` and `resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, UsageError

UNIT = "A unit such as web-0, or an incarnation such as web-0.7."


def register(app: typer.Typer) -> None:
    add_command(app, "scale", acts=True, numbers=True)(scale)
    add_command(app, "drain", acts=True)(drain)
    add_command(app, "restart", acts=True)(restart)
    add_command(app, "stop", acts=True)(stop)
    add_command(app, "pause", acts=True)(pause)
    add_command(app, "resume", acts=True)(resume)


async def scale(
    cli: Cli,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A group of units, by the name in the run file.")],
    count: Annotated[
        str, typer.Argument(metavar="N|+1|-1", help="The new number of units, or how many more or fewer.")
    ],
    seen: Annotated[
        int | None,
        typer.Option("--seen", metavar="N", min=0, help="Refuse if the number is not N any more.", show_default=False),
    ] = None,
) -> ExitCode:
    """Change how many units a group has. Fewer are drained, not killed."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import Scale
    from agentrl.protocol.words import Count, Values

    number: Values = {}
    Count().read(count, number, "to", Scale)
    return await act(cli, "scale", Scale(group=role, seen=seen, **number))


async def drain(
    cli: Cli,
    unit: Annotated[str | None, typer.Argument(metavar="[UNIT]", help=UNIT, show_default=False)] = None,
    host: Annotated[str, typer.Option("--host", metavar="H", help="All units of this host.", show_default=False)] = "",
    cancel: Annotated[bool, typer.Option("--cancel", help="Take a drain back: the units continue.")] = False,
) -> ExitCode:
    """Let a unit, or a whole host, finish its work and stop."""
    from agentrl.cli.execute import act_with, with_incarnation
    from agentrl.protocol.control_commands import DrainUnits

    if bool(unit) == bool(host):
        one = f"`agentrl drain {unit or 'UNIT'}` or `agentrl drain --host {host or 'HOST'}`"
        raise UsageError("Name either a unit or, by --host, a host.", hint=f"Try {one}.")
    async with cli.connect() as client:
        name, incarnation = await with_incarnation(client, unit) if unit else ("", 0)
        return await act_with(
            cli, client, "drain", DrainUnits(unit=name, host=host, incarnation=incarnation, cancel=cancel)
        )


async def restart(
    cli: Cli,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A unit, an incarnation, or a whole group.")],
    now: Annotated[bool, typer.Option("--now", help="Without a drain.")] = False,
) -> ExitCode:
    """Replace a unit, or all units of a group, by new incarnations."""
    from agentrl.cli.execute import act_with, with_incarnation
    from agentrl.protocol.control_commands import Restart

    async with cli.connect() as client:
        name, incarnation = await with_incarnation(client, target)
        return await act_with(cli, client, "restart", Restart(target=name, incarnation=incarnation, now=now))


async def stop(
    cli: Cli,
    unit: Annotated[str, typer.Argument(metavar="UNIT", help=UNIT)],
    now: Annotated[bool, typer.Option("--now", help="Without a drain.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Confirm that a lost unit is dead, so that it may be replaced.")
    ] = False,
) -> ExitCode:
    """Stop one unit until `restart` or `up` starts it again."""
    from agentrl.cli.execute import act_with, with_incarnation
    from agentrl.protocol.control_commands import ForceStopped, Stop

    if now and force:
        raise UsageError("--now stops a unit, --force confirms that it is dead already.", hint="Give one of them.")
    async with cli.connect() as client:
        name, incarnation = await with_incarnation(client, unit)
        if force:
            return await act_with(cli, client, "force_stopped", ForceStopped(unit=name, incarnation=incarnation))
        return await act_with(cli, client, "stop", Stop(unit=name, incarnation=incarnation, now=now))


PAUSABLE = typer.Argument(metavar="[TARGET]", help="A unit, a group, or `run` for everything.")


async def pause(cli: Cli, target: Annotated[str, PAUSABLE] = "run") -> ExitCode:
    """Let units take no new work."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import Pause

    return await act(cli, "pause", Pause(target=target))


async def resume(cli: Cli, target: Annotated[str, PAUSABLE] = "run") -> ExitCode:
    """Let units take work again."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import Resume

    return await act(cli, "resume", Resume(target=target))
