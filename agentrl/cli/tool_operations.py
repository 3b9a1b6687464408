"""Defines the commands that act on tool servers: `tools restart`, `release`, `exec` and `logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import list_pages
from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, RefusedError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from agentrl.client import Client
    from agentrl.protocol.tool_commands import ExecOutput, JoinedRows, SandboxRow, ToolLogLine

Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; the audit keeps it.", show_default=False)]
_FOLLOW_EVERY_S = 0.5


def register(tools: typer.Typer) -> None:
    add_command(tools, "restart", acts=True)(restart)
    add_command(tools, "release", acts=True)(release)
    add_command(tools, "exec", acts=True)(run_program)
    add_command(tools, "logs")(logs)


async def restart(
    cli: Cli,
    tool_target: Annotated[str, typer.Argument(metavar="SERVER|SANDBOX", help="A tool server, or one sandbox.")],
    now: Annotated[bool, typer.Option("--now", help="End it at once, with the sessions that it has.")] = False,
    note: Note = "",
) -> ExitCode:
    """Replace the processes of a tool server, or one of them.

    Each process ends when no session uses it; its replacement already serves. `--now` ends the sessions too.
    """
    from agentrl.cli.execute import act_with
    from agentrl.protocol.tool_commands import RestartTool

    async with cli.connect() as client:
        if "/" in tool_target:
            args = RestartTool(sandbox=tool_target, now=now, note=note)
        else:
            servers = await client.list_tool_servers(deadline_s=list_pages.ANSWER_WITHIN_S)
            if any(row.id == tool_target for row in servers.rows):
                args = RestartTool(server=tool_target, now=now, note=note)
            else:
                args = RestartTool(sandbox=(await _sandbox(client, tool_target)).id, now=now, note=note)
        return await act_with(cli, client, "restart_tool", args)


async def release(
    cli: Cli,
    session: Annotated[str, typer.Argument(metavar="SESSION|SANDBOX", help="The id of a record, or a sandbox.")],
    toolbox: Annotated[
        str,
        typer.Option(
            "--toolbox", metavar="INCARNATION", help="Only in this one, such as toolbox-0.4.", show_default=False
        ),
    ] = "",
    note: Note = "",
) -> ExitCode:
    """Close a session, and cancel its calls.

    The attempt of its record ends as an infrastructure failure and is made again.
    """
    from agentrl.cli.execute import act_with
    from agentrl.protocol.tool_commands import MOST_ROWS, ReleaseSession

    async with cli.connect() as client:
        if toolbox:
            return await act_with(cli, client, "release_session", ReleaseSession(session, toolbox, note))
        sessions = await client.list_tool_sessions(limit=MOST_ROWS, deadline_s=list_pages.ANSWER_WITHIN_S)
        found = next((row for row in sessions.rows if row.id == session), None)
        if found is not None:
            args = ReleaseSession(found.id, found.toolbox, note)
        else:
            box = await _sandbox(client, session)
            if not box.session:
                raise RefusedError(
                    f"{box.id} is {box.state} and belongs to no session.",
                    hint="`agentrl tools sessions` lists sessions; `agentrl tools restart` replaces a sandbox.",
                )
            args = ReleaseSession(box.session, box.toolbox, note)
        return await act_with(cli, client, "release_session", args)


async def run_program(
    cli: Cli,
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Such as shop-7.")],
    command: Annotated[list[str], typer.Argument(metavar="PROGRAM [ARG]...", help="After --; no shell reads it.")],
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", min=0.1, max=300, help="End the program after this time.")
    ] = 30.0,
    note: Note = "",
) -> ExitCode:
    """Run a program in a sandbox, within its limits.

    It sees only the files and processes of the sandbox. The exit code is 1 if the program fails, 5 if there is no such
    program.
    """
    from agentrl.cli import output
    from agentrl.cli.execute import agreed, exit_code, finished, report_accepted, say_end
    from agentrl.protocol.tool_commands import ExecInSandbox

    async with cli.connect() as client:
        # For a complete id the coordinator can report what happened to the sandbox.
        id = sandbox if "/" in sandbox else (await _sandbox(client, sandbox)).id
        send = await agreed(cli, client, "exec_in_sandbox", ExecInSandbox(id, tuple(command), within, note))
        if send is None:
            return ExitCode.OK
        accepted = await send()
        if not cli.wait:
            report_accepted(cli, accepted)
            return ExitCode.OK
        row = await finished(cli, client, accepted.operation)
        found = await client.show_exec_output(accepted.operation, deadline_s=list_pages.ANSWER_WITHIN_S)
    ran = found.rows[0] if found.rows else None
    if cli.json:
        output.emit({"operation": row, "output": ran})
    elif ran is None:
        say_end(row, row.summary)
    elif ran.not_started:
        hint = "A program in a sandbox sees the files of the sandbox only."
        raise UnknownNameError(f"{id} cannot run {command[0]}: {ran.not_started}.", hint=hint)
    else:
        _print(ran, within)
    if ran is not None and ran.not_started:
        return ExitCode.UNKNOWN
    return exit_code(row) if ran is None else ExitCode.OK if ran.exit == 0 else ExitCode.FAILED


def _print(ran: ExecOutput, within_s: float) -> None:
    from agentrl.cli import output

    if ran.stdout:
        print(output.sanitise_lines(ran.stdout).rstrip("\n"))
    for line in output.sanitise_lines(ran.stderr).splitlines():
        output.note(line)
    if ran.cut:
        output.note("It wrote more; the rest is not kept.")
    if ran.exit is None:
        output.note(f"It was ended, because it took longer than {within_s:g} s. `--within` gives it more.")
    elif ran.exit:
        output.note(f"It exited with {ran.exit}.")


async def logs(
    cli: Cli,
    tool_target: Annotated[str, typer.Argument(metavar="SERVER|SANDBOX", help="Also a sandbox that has ended.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then print new lines, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, max=2000, help="The last N lines.")] = 200,
) -> ExitCode:
    """Show what a tool server or a sandbox wrote to its log."""
    import asyncio

    from agentrl.cli import output
    from agentrl.formatting import sandbox_text
    from agentrl.protocol.tool_commands import ToolLogs

    after: dict[str, int] = {}
    missing = ""
    async with cli.connect() as client:
        while True:
            args = ToolLogs(tool_target, after, lines)
            found: JoinedRows[ToolLogLine] = await client.call("tool_logs", args, deadline_s=list_pages.ANSWER_WITHIN_S)
            if (text := sandbox_text.incomplete(found.missing)) != missing and not cli.json:
                missing = text
                output.note(text or "No rows are missing any more.")
            if cli.json and not follow:
                output.emit(found)
            for line in found.rows:
                after[line.toolbox] = max(line.number, after.get(line.toolbox, 0))
                if cli.json and follow:
                    output.emit_line(line)
                elif not cli.json:
                    print(f"{output.moment(line.at)} {line.sandbox}: {output.sanitise_lines(line.text)}", flush=True)
            if not follow:
                if not found.rows and not cli.json:
                    output.note(f"{tool_target} has written nothing yet.")
                return ExitCode.OK
            await asyncio.sleep(_FOLLOW_EVERY_S)


async def _sandbox(client: Client, name: str) -> SandboxRow:
    """The sandbox of this name, with or without its toolbox. Raises UnknownNameError, UsageError."""
    from agentrl.formatting import sandbox_text
    from agentrl.protocol.tool_commands import MOST_ROWS

    boxes = await client.list_sandboxes(limit=MOST_ROWS, deadline_s=list_pages.ANSWER_WITHIN_S)
    found = [row for row in boxes.rows if name in (row.id, row.id.rpartition("/")[2])]
    if not found:
        lists = "`agentrl tools list`, `agentrl tools sessions` and `agentrl tools sandboxes` show what there is."
        hint = f"{sandbox_text.incomplete(boxes.missing)} {lists}".lstrip()
        raise UnknownNameError(f"There is no tool server, session or sandbox {name!r}.", hint=hint)
    if len(found) > 1:
        raise UsageError(f"{name} exists more than once.", hint=f"Name one: {', '.join(row.id for row in found)}.")
    return found[0]
