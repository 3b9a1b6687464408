"""Defines the commands `hosts list`, `hosts show`, `hosts add`, `hosts drain`, `hosts remove` and `hosts forget`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ConflictError, ExitCode, UnknownNameError, UsageError

if TYPE_CHECKING:
    from agentrl.protocol.rows import HostRow


def register(app: typer.Typer) -> None:
    hosts = group(app, "hosts", "The machines of the run and their devices.")
    add_command(hosts, "list")(list_hosts)
    add_command(hosts, "show")(show)
    add_command(hosts, "add", acts=True)(add)
    add_command(hosts, "drain", acts=True)(drain)
    add_command(hosts, "remove", acts=True)(remove)
    add_command(hosts, "forget", acts=True)(forget)


async def list_hosts(cli: Cli) -> ExitCode:
    """Show all hosts: state, load and free devices."""
    from agentrl.cli import output
    from agentrl.formatting.device_text import count_of
    from agentrl.formatting.row_text import clock_text

    async with cli.connect() as client:
        hosts = (await client.status()).hosts
    if cli.json:
        output.emit(hosts)
        return ExitCode.OK
    rows = [
        (row.host, row.state, str(row.units), f"{row.cpu_percent:.0f} %", _memory(row), count_of(row)) for row in hosts
    ]
    names = ("host", "state", "units", "cpu", "memory", "devices")
    output.show(output.table(names, rows, right=("units", "cpu")), cli.color)
    for row in hosts:
        if remarks := "; ".join(filter(None, (row.reason, clock_text(row)))):
            output.say(f"{row.host}: {remarks}")
    return ExitCode.OK


async def show(cli: Cli, host: Annotated[str, typer.Argument(metavar="HOST", help="A host of the run.")]) -> ExitCode:
    """Show one host and who holds its devices.

    With the processes that compute on each device, its memory and its load."""
    from agentrl.cli import output
    from agentrl.formatting.device_text import COLUMNS, cells_of
    from agentrl.formatting.row_text import clock_text

    async with cli.connect() as client:
        hosts = (await client.status()).hosts
    row = next((row for row in hosts if row.host == host), None)
    if row is None:
        known = ", ".join(sorted(each.host for each in hosts)) or "none yet"
        raise UnknownNameError(f"There is no host {host}.", hint=f"Hosts of this run: {known}.")
    if cli.json:
        output.emit(row)
        return ExitCode.OK
    output.say(
        f"{row.host} is {row.state}: {row.units} units, {row.cpu_percent:.0f} % of its processors, {_memory(row)}."
    )
    if row.reason:
        output.say(row.reason)
    if off := clock_text(row):
        output.say(f"{off[:1].upper()}{off[1:]}, so the times in its logs are wrong.")
    if row.facts.without_devices:
        output.say(row.facts.without_devices)
    if not row.facts.devices:
        output.say("It has no devices.")
        return ExitCode.OK
    output.show(output.table(COLUMNS, cells_of(row), right=("memory", "busy", "°C")), cli.color)
    return ExitCode.OK


def _memory(row: HostRow) -> str:
    from agentrl.cli import output

    used, total = row.memory_used_bytes, row.facts.memory_bytes
    return f"{output.size(used)} of {output.size(total)}" if total else output.size(used)


async def add(
    cli: Cli,
    host: Annotated[str, typer.Argument(metavar="HOST", help="The name of the new host.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Its key file; default: HOST.key here.", show_default=False),
    ] = None,
) -> ExitCode:
    """Admit another machine to the run, and show what to run there.

    With a placement, `agentrl up` starts the agents of all hosts of the run file, and this is not needed."""
    import shlex

    from agentrl.cli import output
    from agentrl.cli.keys import Permission, file_of, make_key
    from agentrl.config.this_host import HOST_NAME

    if not HOST_NAME.fullmatch(host):
        raise UsageError(f"{host!r} is no name of a host.", hint="Use at most 64 letters, digits, dots and dashes.")
    file = file_of(host, out)
    async with cli.connect() as client:
        status = await client.status()
        if any(row.host == host for row in status.hosts):
            raise ConflictError(f"The run has a host {host} already.", hint=f"`agentrl hosts show {host}` shows it.")
        name = _free_name(host, {row.name for row in await client.list_keys()})
        key = await make_key(cli, client, name, Permission.HOST, file)
    if key is None:
        return ExitCode.OK
    where = ["--state-dir", f"/var/tmp/agentrl/{status.run.uuid}", "--run-dir", status.run.run_dir]
    whom = ["--run", status.run.uuid, "--coordinator", key.address, "--key", file.name]
    command = shlex.join(["agentrl", "daemon", "host", "--name", host, *where, *whom])
    if cli.json:
        output.emit({"host": host, "key": name, "file": str(file), "command": command})
        return ExitCode.OK
    output.say(f"{file} lets one machine join as {host}; keep it secret (mode 0600). Copy it there, then run there:")
    output.say(f"  {command}")
    output.say("A host without the directory of the run gets files over the network; give it a directory of its own.")
    return ExitCode.OK


def _free_name(host: str, taken: set[str]) -> str:
    """A free name for the key. A revoked key keeps its name."""
    number = 2
    name = host
    while name in taken:
        name, number = f"{host}-{number}", number + 1
    return name


async def drain(
    cli: Cli,
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host of the run.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="The host takes units again.")] = False,
) -> ExitCode:
    """Let the units of a host finish their work and start elsewhere.

    The host stays in the run and gets no unit until `--cancel`. The same as `agentrl drain --host HOST`."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import DrainUnits

    return await act(cli, "drain", DrainUnits(host=host, cancel=cancel))


async def remove(cli: Cli, host: Annotated[str, typer.Argument(metavar="HOST", help="A host of the run.")]) -> ExitCode:
    """Drain a host, then end its agent and revoke its key.

    `agentrl hosts drain HOST --cancel` keeps the host as long as one of its units lives."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import RemoveHost

    return await act(cli, "remove_host", RemoveHost(host=host))


async def forget(
    cli: Cli, host: Annotated[str, typer.Argument(metavar="HOST", help="A host that does not answer any more.")]
) -> ExitCode:
    """Confirm that a silent host is gone for good.

    Its units are dead then, so they may be started elsewhere, and `down` needs no report from it.
    """
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import ForgetHost

    return await act(cli, "forget_host", ForgetHost(host=host))
