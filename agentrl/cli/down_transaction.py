"""Takes a run down as a transaction: by its coordinator, or from this host if no coordinator answers.

Invariants:
- After the command was sent, the first Ctrl-C only prints what a second one would do.
- "Nothing is left" is proven by a scan if this host can be scanned, not only by the report of the coordinator.
- Processes are named before they are ended without a coordinator.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentrl.cli import leftover_processes, output, run_transaction, start_coordinator
from agentrl.cli.execute import agreed, report_accepted
from agentrl.cli.options import Cli
from agentrl.cli.progress import Progress
from agentrl.cli.run_transaction import LocalTransaction, Transaction
from agentrl.client import Client
from agentrl.client.discovery import forget_dead
from agentrl.client.run_processes import RunProcess, keepers_of
from agentrl.config import paths
from agentrl.config.paths import RunFile
from agentrl.errors import ConfigError, ExitCode, NoCoordinatorError, UsageError
from agentrl.formatting.sentences import ended
from agentrl.protocol.control_commands import Accepted, Down
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages import NONE_LEFT, ProcessInfo, ScanReport
from agentrl.protocol.rows import OperationRow, OperationState

_KEEPERS_END_WITHIN_S = 20.0
_TREES_END_WITHIN_S = 5.0
_COMMAND_SHOWN = 120
_AGENT_RESTARTS_COORDINATOR_WITHIN_S = 10.0


async def end_run(cli: Cli, *, now: bool) -> ExitCode:
    """Stop the selected run, on this or another host, or remove its remaining processes on this host."""
    run = None if cli.remote else await _find_run(cli)
    if cli.remote or (run is not None and await _is_answered(run)):
        return await run_transaction.carry_out(_Stop(cli, run, Down(now=now)))
    if run is not None:
        state_dir = paths.state_dir(run.name)
        found, keepers = await leftover_processes.scan(run.uuid, state_dir), keepers_of(state_dir)
        if found.found or keepers:
            return await run_transaction.carry_out(_RemoveLeftovers(cli, run, found, keepers))
    former = await _run_without_files(run.name if run is not None else cli.named)
    if former is not None:
        left = await leftover_processes.scan(former.uuid, paths.state_dir(former.name))
        return await run_transaction.carry_out(_RemoveLeftovers(cli, former, left, []))
    if run is None:
        return _report_no_run(cli)
    if not cli.dry_run:
        forget_dead(state_dir, run.uuid)
    return _report_not_up(cli, run, found)


async def _is_answered(run: RunFile) -> bool:
    """Whether the coordinator answers. A living agent may be restarting it."""
    keepers = keepers_of(paths.state_dir(run.name))
    return await start_coordinator.answers(run.name, _AGENT_RESTARTS_COORDINATOR_WITHIN_S if keepers else 1.0)


async def _find_run(cli: Cli) -> RunFile | None:
    """The run to stop: the named run, else the only run with living processes."""
    found = paths.list_runs()
    known = [run for run in found if not run.broken]
    unreadable = [run for run in found if run.broken and cli.named in (run.name, None)]
    if cli.named:
        _refuse_if_any(unreadable)
        return next((run for run in known if run.name == cli.named), None)
    up = [run for run in known if keepers_of(paths.state_dir(run.name))]
    if not up and len(known) > 1:
        up = [run for run in known if (await leftover_processes.scan(run.uuid, paths.state_dir(run.name))).found]
    if len(up) > 1:
        raise UsageError(f"Several runs are up: {', '.join(run.name for run in up)}.", hint="Name one: --run NAME.")
    if up:
        return up[0]
    _refuse_if_any(unreadable)
    return known[0] if len(known) == 1 else None


async def _run_without_files(name: str | None) -> RunFile | None:
    """A run that has living processes although its state directory was deleted, or deleted and created again."""
    found = await leftover_processes.runs_without_files()
    fitting = [RunFile(of, uuid, "", 0.0) for uuid, of in sorted(found.items()) if name in (None, of)]
    if len({run.name for run in fitting}) > 1:
        names = ", ".join(sorted({run.name for run in fitting}))
        raise UsageError(f"Processes of deleted runs live: {names}.", hint="Name one: --run NAME.")
    return next(iter(fitting), None)


def _refuse_if_any(unreadable: list[RunFile]) -> None:
    """A run whose state cannot be read may be up, so it is never reported as stopped."""
    for run in unreadable:
        raise ConfigError(
            f"{run.broken} The run {run.name} may be up.",
            hint="Make the file readable, and say `agentrl down` again.",
        )


class _Stop(Transaction):
    """Asks the coordinator to end the run, waits for its end, and scans this host if the run was here."""

    def __init__(self, cli: Cli, run: RunFile | None, args: Down) -> None:
        """`run` is None if the run is reached by a key file."""
        super().__init__(cli)
        self._run = run
        self._args = args
        self._keepers: list[RunProcess] = []
        self._pressed = 0

    async def prepare(self) -> None:
        connection = Client.connect(run=self._run.name) if self._run is not None else self.cli.connect()
        self._client = await self.resources.enter_async_context(connection)
        if self._run is not None:
            self._keepers = keepers_of(paths.state_dir(self._run.name))

    async def consent(self) -> bool:
        self._send = await agreed(self.cli, self._client, "down", self._args)
        return self._send is not None

    async def act(self) -> None:
        """Send the command. Units may be stopping before the answer arrives, so from here on Ctrl-C hurries the
        stop."""
        assert self._send is not None
        if self.cli.wait:
            self.signals.count_presses()
        call: asyncio.Future[Accepted] = asyncio.ensure_future(self._send())
        try:
            while not await self._pressed_before(call):
                self._pressed += 1
                if self._pressed == 2:
                    raise KeyboardInterrupt
        finally:
            call.cancel()
        self._accepted = call.result()

    async def finish(self) -> ExitCode:
        if not self.cli.wait:
            report_accepted(self.cli, self._accepted)
            return ExitCode.OK
        with Progress(self.cli) as progress:
            row = await self._wait(progress)
        if self._run is None:
            return report_end(self.cli, "", row, None, [])
        if row is not None and row.state is OperationState.SUPERSEDED:
            return _report_up_again(self.cli, self._run.name, row)
        with Progress(self.cli) as progress:
            progress.step("waiting for agent and coordinator to end")
            left = await leftover_processes.until_gone(self._keepers, _KEEPERS_END_WITHIN_S)
            progress.step("looking at every process of this host")
            state_dir = paths.state_dir(self._run.name)
            found = await leftover_processes.scan_until_empty(self._run.uuid, state_dir, _TREES_END_WITHIN_S)
        return report_end(self.cli, self._run.name, row, found, left)

    async def _wait(self, progress: Progress) -> OperationRow | None:
        """The operation at its end; None if the coordinator ended before it could answer, because ending is its last
        act."""
        gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._keepers:
            gone = asyncio.ensure_future(leftover_processes.until_gone(self._keepers))
        row = self._watch(self._accepted.operation, progress)
        if self._pressed:
            _note_what_ctrl_c_does()
        try:
            while not await self._pressed_before(row, gone):
                self._pressed += 1
                if self._pressed == 1:
                    _note_what_ctrl_c_does()
                elif self._pressed == 2:
                    output.note("Killing what is left. Ctrl-C once more stops the waiting.")
                    again: Accepted = await self._client.call("down", Down(now=True))
                    row.cancel()
                    row = self._watch(again.operation, progress)
                else:
                    output.note(
                        "No longer waiting; the stopping goes on. `agentrl down` proves later that nothing is left."
                    )
                    raise KeyboardInterrupt
            return row.result() if row.done() else None
        except NoCoordinatorError:
            return None
        finally:
            self.signals.stop_counting()
            row.cancel()
            gone.cancel()
            await asyncio.gather(row, gone, return_exceptions=True)

    def _watch(self, operation: str, progress: Progress) -> asyncio.Future[OperationRow]:
        return asyncio.ensure_future(
            self._client.wait(operation, on_change=progress.operation, timeout_s=self.cli.timeout_s)
        )

    async def _pressed_before(self, *awaited: asyncio.Future[Any]) -> bool:
        """Waits. Returns False at the next Ctrl-C, and True if one of the futures is done first."""
        key = asyncio.ensure_future(self.signals.presses.get())
        try:
            done, _ = await asyncio.wait({key, *awaited}, return_when=asyncio.FIRST_COMPLETED)
            return key not in done
        finally:
            key.cancel()


def _note_what_ctrl_c_does() -> None:
    output.note("Units are finishing what is under way. Ctrl-C once more kills them.")


class _RemoveLeftovers(LocalTransaction):
    """Ends the processes of a run whose coordinator does not answer."""

    def __init__(self, cli: Cli, run: RunFile, found: ScanReport, keepers: list[RunProcess]) -> None:
        super().__init__(cli)
        self._run = run
        self._found = found
        self._keepers = keepers

    async def prepare(self) -> None:
        listed = {one.pid for one in self._found.found}
        names = [_named(one) for one in self._found.found]
        names += [f"{keeper.what} (pid {keeper.pid})" for keeper in self._keepers if keeper.pid not in listed]
        self.effect = Effect(kills=tuple(names))
        if not self.cli.dry_run:
            gone = "" if self._run.run_dir else f" Its files in {paths.state_dir(self._run.name)} were deleted."
            output.note(f"No coordinator answers for {self._run.name}, but processes of it are left.{gone}")

    async def act(self) -> None:
        # Agents first: they would restart the coordinator, and the coordinator the units.
        self._left = await leftover_processes.end(self._keepers)
        uuid, state_dir = self._run.uuid, paths.state_dir(self._run.name)
        killed = await leftover_processes.scan(uuid, state_dir, kill=True)
        after = await leftover_processes.scan_until_empty(uuid, state_dir, _TREES_END_WITHIN_S)
        self._after = msgspec.structs.replace(after, killed=killed.killed or self._found.found)

    async def finish(self) -> ExitCode:
        if not self._after.found:
            forget_dead(paths.state_dir(self._run.name), self._run.uuid)
        return report_end(self.cli, self._run.name, None, self._after, self._left)


def _report_no_run(cli: Cli) -> ExitCode:
    name = cli.named or ""
    what = f"There is no run named {name!r} on this host" if name else "No run is up on this host"
    sentence = f"{what}, in {paths.home()}; there is nothing to stop."
    return _report_sentence(cli, sentence, {"run": name, "proven": True, "was_up": False})


def _report_not_up(cli: Cli, run: RunFile, found: ScanReport) -> ExitCode:
    sentence = f"The run {run.name} is not up: none of {found.examined} processes on {found.host} belongs to it."
    return _report_sentence(cli, sentence, {"run": run.name, "proven": True, "was_up": False, "scan": found})


def _report_up_again(cli: Cli, name: str, row: OperationRow) -> ExitCode:
    sentence = f"The run {name} was not brought down: {ended(row.reason)}"
    return _report_sentence(cli, sentence, {"run": name, "proven": False, "was_up": True, "operation": row})


def _report_sentence(cli: Cli, sentence: str, document: dict[str, Any]) -> ExitCode:
    if cli.json:
        output.emit({**document, "lines": [sentence]})
    else:
        (output.say if document["proven"] else output.note)(sentence)
    return ExitCode.OK if document["proven"] else ExitCode.CONFLICT


def _named(process: ProcessInfo) -> str:
    """A process by its incarnation, or by its command line if it has none."""
    command = process.command if len(process.command) <= _COMMAND_SHOWN else f"{process.command[:_COMMAND_SHOWN]}…"
    return f"{process.incarnation or command} (pid {process.pid}, {process.why})"


def report_end(
    cli: Cli, name: str, row: OperationRow | None, found: ScanReport | None, left: list[RunProcess]
) -> ExitCode:
    """Report the stopped units, and whether it is proven that no process is left."""
    lines = list(row.lines) if row is not None else []
    remaining = [f"{one.what} (pid {one.pid}) lives on" for one in left]
    if found is not None:
        # The scan of this host is newer than the coordinator's line about it.
        lines = [line for line in lines if not (line.startswith(f"{found.host}: ") and line.endswith(NONE_LEFT))]
        lines += [f"killed {_named(one)}" for one in found.killed]
        remaining += [f"{_named(one)} on {found.host}" for one in found.found]
    failed = ""
    if row is not None and row.state is not OperationState.SUCCEEDED:
        failed = f"{row.state}: {row.reason}"
    elif row is None and found is None:
        failed = "The coordinator ended, or could not be reached any more, before it reported the end of the run."
    unproven = found.unproven if found is not None else ""
    proven = not remaining and not failed
    if proven and found is not None:
        lines.append(f"Nothing of {name} is left: none of {found.examined} processes on {found.host} belongs to it.")
    elif proven:
        lines.append("The run is down, says its coordinator.")
    proven = proven and not unproven
    if unproven:
        lines.append(f"Not proven: {unproven}")
    if cli.json:
        document = {"run": name, "proven": proven, "was_up": True, "operation": row, "scan": found}
        output.emit({**document, "lines": lines, "left": remaining})
    else:
        for line in lines:
            output.say(line)
        for line in remaining:
            output.note(f"agentrl: still there: {line}")
        if failed:
            output.note(f"agentrl: {failed}")
    return ExitCode.OK if proven else ExitCode.NOT_PROVEN
