"""Defines the commands `tools ...`: tool servers with their tools, sandboxes, sessions and errors."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli import list_pages, tool_operations, tool_packages
from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.protocol.data_commands import ToolErrorGroup
    from agentrl.protocol.tool_commands import JoinedRows, SandboxRow, ToolRow, ToolServerRow, ToolSessionRow

ServerName = Annotated[str, typer.Argument(metavar="SERVER", help="A tool server of the run file.")]
OnlyServer = Annotated[
    str, typer.Option("--server", metavar="SERVER", help="Only of this tool server.", show_default=False)
]
_MOST_MEMORY = "-memory"


def register(app: typer.Typer) -> None:
    tools = group(app, "tools", "Tool servers: their sandboxes, sessions, errors and packages.", default="list")
    add_command(tools, "list")(list_servers)
    add_command(tools, "show")(show_server)
    add_command(tools, "sandboxes")(list_sandboxes)
    add_command(tools, "sessions")(list_sessions)
    add_command(tools, "schema")(schema)
    add_command(tools, "errors", reads=True)(tool_errors)
    tool_operations.register(tools)
    tool_packages.register(tools)


async def list_servers(cli: Cli) -> ExitCode:
    """List tool servers, with their state and use."""
    async with cli.connect() as client:
        found = await client.list_tool_servers(deadline_s=list_pages.ANSWER_WITHIN_S)
    return _table(cli, found, _SERVER_COLUMNS, _server_cells, right=("calls", "failed", "died"), spare=("version",))


async def show_server(cli: Cli, server: ServerName) -> ExitCode:
    """Show a tool server with its tools, sandboxes and sessions."""
    import asyncio

    from agentrl.cli import output
    from agentrl.formatting import sandbox_text

    within = {"deadline_s": list_pages.ANSWER_WITHIN_S}
    async with cli.connect() as client:
        servers, tools, sandboxes, sessions = await asyncio.gather(
            client.list_tool_servers(server=server, **within),
            client.list_tools(server=server, **within),
            client.list_sandboxes(server=server, sort=_MOST_MEMORY, **within),
            client.list_tool_sessions(server=server, **within),
        )
    boxes = _in_order(sandboxes.rows, _MOST_MEMORY, len(sandboxes.rows))
    missing = {unit.unit: unit for part in (servers, tools, sandboxes, sessions) for unit in part.missing}.values()
    if cli.json:
        lists = {"servers": servers.rows, "tools": tools.rows, "sandboxes": boxes, "sessions": sessions.rows}
        output.emit(lists | {"missing": list(missing)})
        return ExitCode.OK
    for row in servers.rows:
        _say_server(row)
    _show_rows(cli, tools.rows, _TOOL_COLUMNS, _tool_cells, right=_TOOL_COLUMNS[1:5])
    output.say()
    _show_rows(cli, boxes, _SANDBOX_COLUMNS, _sandbox_cells, right=_FIGURES, spare=_SPARE)
    if sessions.rows:
        output.say()
        _show_rows(cli, sessions.rows, _SESSION_COLUMNS, _session_cells, right=("calls", "failed"))
    if text := sandbox_text.incomplete(missing):
        output.note(text)
    return ExitCode.OK


async def list_sandboxes(
    cli: Cli,
    server: OnlyServer = "",
    filter: Annotated[str, list_pages.filtering("tools sandboxes")] = "",
    sort: Annotated[str, list_pages.sorting("tools sandboxes", "the most memory first")] = _MOST_MEMORY,
    limit: list_pages.Limit = 100,
) -> ExitCode:
    """List the processes of tool servers with their resources.

    `near` is how near it is to its memory limit, `files` the most open files of one process.
    """
    from msgspec.structs import replace

    async with cli.connect() as client:
        found = await client.list_sandboxes(
            server=server, filter=filter, sort=sort, limit=limit, deadline_s=list_pages.ANSWER_WITHIN_S
        )
    found = replace(found, rows=_in_order(found.rows, sort, limit))
    return _table(cli, found, _SANDBOX_COLUMNS, _sandbox_cells, right=_FIGURES, spare=_SPARE)


async def list_sessions(cli: Cli, server: OnlyServer = "", limit: list_pages.Limit = 100) -> ExitCode:
    """List open sessions, the oldest first.

    A session has the id of its record, or `outside/NAME/...` of a program outside of the run, whose calls are also in
    `agentrl logs toolbox-0`. `failed` counts calls that did not end by an answer of their tool.
    """
    from msgspec.structs import replace

    async with cli.connect() as client:
        found = await client.list_tool_sessions(server=server, limit=limit, deadline_s=list_pages.ANSWER_WITHIN_S)
    found = replace(found, rows=sorted(found.rows, key=lambda row: row.opened_at)[:limit])
    return _table(cli, found, _SESSION_COLUMNS, _session_cells, right=("calls", "failed"))


async def schema(cli: Cli, server: ServerName) -> ExitCode:
    """Print the tools of a server in the form of chat APIs.

    The output is JSON: the value of `tools` in a demonstration, or in a request.
    """
    from agentrl.cli import output

    async with cli.connect() as client:
        found = await client.list_tools(server=server, deadline_s=list_pages.ANSWER_WITHIN_S)
    # All toolboxes have the same tools, so one answer is enough.
    tools = {row.id: row for row in found.rows}
    output.emit([_function(row) for row in tools.values()])
    return ExitCode.OK


def _function(row: ToolRow) -> dict[str, Any]:
    parameters = row.schema or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": row.name, "description": row.description, "parameters": parameters},
    }


async def tool_errors(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("tools errors")] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most this many groups.")
    ] = 50,
) -> ExitCode:
    """Group tool errors by message: how often, and sample records. Malformed calls count as well."""
    from agentrl.cli import output

    async with cli.connect() as client:
        found = await client.tool_errors(filter=filter, limit=limit, deadline_s=list_pages.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(found)
        return ExitCode.OK
    if not found:
        output.say("No tool failed.")
    for kind in found:
        _show_errors(cli, kind, filter)
    return ExitCode.OK


def _show_errors(cli: Cli, kind: ToolErrorGroup, filter: str) -> None:
    from agentrl.cli import output
    from agentrl.formatting import tool_call_text
    from agentrl.protocol.data_commands import MALFORMED

    tool = tool_call_text.name({"server": kind.server, "tool": kind.tool}) or "(no tool)"
    last = f", the last {output.moment(kind.last_at)}" if kind.last_at else ""
    output.say(f"{kind.count} x {tool} {kind.status} ({kind.error_class}){last}: {kind.message}")
    for sample in kind.samples:
        output.say(cli.aimed(f"    agentrl records show '{sample.record}'    {sample.call}"))
    if kind.status != MALFORMED:
        only = f" --filter {shlex.quote(filter)}" if filter else ""
        output.say(cli.aimed(f"    agentrl calls --error {shlex.quote(kind.message)}{only}"))


# ---- tables ----

_SERVER_COLUMNS = (
    "server",
    "state",
    "mode",
    "sessions",
    "sandboxes",
    "memory",
    "calls",
    "failed",
    "died",
    "version",
    "why",
)
_TOOL_COLUMNS = ("tool", "calls", "errors", "p50", "p95", "effect", "what")
_SANDBOX_COLUMNS = ("sandbox", "state", "memory", "near", "cpu", "processes", "files", "calls", "age", "serves")
_SESSION_COLUMNS = ("session", "servers", "calls", "failed", "opened", "now")
_FIGURES = ("memory", "near", "cpu", "processes", "files", "calls", "age")
_SPARE = ("files", "processes", "calls", "cpu")


def _in_order(rows: Sequence[SandboxRow], sort: str, limit: int) -> list[SandboxRow]:
    """The first rows of all toolboxes together; each toolbox has sorted its own rows."""
    from datetime import UTC, datetime

    from agentrl.filters.fields import SANDBOXES
    from agentrl.filters.row_selection import select

    return select(rows, SANDBOXES, filter="", sort=sort, limit=limit, now=datetime.now(UTC))


def _table(
    cli: Cli,
    found: JoinedRows[Any],
    columns: Sequence[str],
    cells: Callable[[Any], tuple[object, ...]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> ExitCode:
    from agentrl.cli import output
    from agentrl.formatting import sandbox_text

    if cli.json:
        output.emit(found)
        return ExitCode.OK
    _show_rows(cli, found.rows, columns, cells, right=right, spare=spare)
    if text := sandbox_text.incomplete(found.missing):
        output.note(text)
    return ExitCode.OK


def _show_rows(
    cli: Cli,
    rows: Sequence[Any],
    columns: Sequence[str],
    cells: Callable[[Any], tuple[object, ...]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    from agentrl.cli import output

    if not rows:
        output.note("Nothing was found.")
        return
    width = output.console(cli.color).width
    output.show(output.table(columns, map(cells, rows), right=right, width=width, spare=spare), cli.color)


def _server_cells(row: ToolServerRow) -> tuple[object, ...]:
    from agentrl.formatting import sandbox_text
    from agentrl.formatting.amounts import size

    use = (row.sessions or "", row.sandboxes or "", size(row.memory_bytes) if row.memory_bytes else "")
    counts = (row.calls or "", row.failed or "", row.died or "")
    return (row.id, sandbox_text.state(row), row.session, *use, *counts, row.version, sandbox_text.trouble(row))


def _tool_cells(row: ToolRow) -> tuple[object, ...]:
    from agentrl.cli import output

    times = (output.duration(seconds) if seconds else "" for seconds in (row.p50_s, row.p95_s))
    what = row.description.strip().partition("\n")[0]
    return (row.id, row.calls or "", row.errors or "", *times, row.effect, what)


def _sandbox_cells(row: SandboxRow) -> tuple[object, ...]:
    from agentrl.cli import output
    from agentrl.formatting import sandbox_text

    cpu = f"{row.cpu_percent:.0f}%" if row.measured_at else ""
    processes = sandbox_text.used(row.processes, row.processes_limit)
    files = sandbox_text.used(row.open_files, row.open_files_limit)
    near = sandbox_text.share(row.memory_share)
    figures = (sandbox_text.memory(row), near, cpu, processes, files, row.calls or "", output.age(row.age_s))
    return (row.id, row.state, *figures, sandbox_text.doing(row))


def _session_cells(row: ToolSessionRow) -> tuple[object, ...]:
    from agentrl.cli import output
    from agentrl.formatting import sandbox_text

    opened = output.since(row.opened_at)
    return (row.id, ", ".join(row.servers), row.calls or "", row.failed or "", opened, sandbox_text.session_state(row))


def _say_server(row: ToolServerRow) -> None:
    from agentrl.cli import output
    from agentrl.formatting import sandbox_text
    from agentrl.formatting.amounts import counted, size

    version = f" ({row.version})" if row.version else ""
    output.say(f"{row.id}{version} on {row.toolbox}: {sandbox_text.state(row)}, session mode {row.session}")
    use = (counted(row.sessions, "sessions"), counted(row.sandboxes, "sandboxes"), size(row.memory_bytes))
    output.say(f"  {', '.join(use)}, {row.cpu_percent:.0f} % of a core, {counted(row.running, 'calls')} under way")
    if row.sandbox:
        output.say(f"  {row.sandbox}")
    for name in ("why", "last_failure", "last_death"):
        if text := getattr(row, name):
            output.say(f"  {name.replace('_', ' ')}: {text}")
    output.say()
