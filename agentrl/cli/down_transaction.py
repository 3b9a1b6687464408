"""The end of a run: everything is stopped, then it is proven that nothing is left.

Invariants: the first Ctrl-C only says what the second one does; "nothing is left" is never taken from the coordinator
alone where this host can be looked at; what is removed without a coordinator is named first.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable
from typing import Any

import msgspec

from agentrl.cli import cleanup_check, output, start_coordinator
from agentrl.cli.execute import agreed, consented, report_accepted, report_preview
from agentrl.cli.options import RUN_VARIABLE, Cli
from agentrl.cli.progress import Progress
from agentrl.client import Client
from agentrl.client.discovery import forget_dead
from agentrl.client.run_processes import Living, keepers_of
from agentrl.config import paths
from agentrl.config.paths import RunFile
from agentrl.errors import ExitCode, NoCoordinatorError, UsageError
from agentrl.formatting.sentences import ended
from agentrl.protocol.commands import Accepted, Down
from agentrl.protocol.effects import Effect, tier_of
from agentrl.protocol.messages import NONE_LEFT, ProcessInfo, ScanReport
from agentrl.protocol.rows import OperationRow, OperationState

_KEEPERS_END_WITHIN_S = 20.0
_TREES_END_WITHIN_S = 5.0
_COMMAND_SHOWN = 120
_AGENT_BRINGS_IT_BACK_WITHIN_S = 10.0


async def end_run(cli: Cli, *, now: bool) -> ExitCode:
    """Stop the run that is meant, wherever its coordinator is, or remove whatever was left of it."""
    if cli.remote:
        async with cli.connect() as client:
            stopped = await _stop(cli, client, [], now=now)
            return _tell(cli, "", stopped, None, []) if stopped is not _UNWANTED else ExitCode.OK
    run = await _meant(cli)
    if run is None:
        return _nothing(cli)
    keepers = keepers_of(paths.state_dir(run.name))
    # While an agent lives it may be bringing its coordinator back, so that is waited for.
    if not await start_coordinator.answers(run.name, _AGENT_BRINGS_IT_BACK_WITHIN_S if keepers else 1.0):
        return await _remove_leftovers(cli, run)
    async with Client.connect(run=run.name) as client:
        keepers = keepers_of(paths.state_dir(run.name))
        stopped = await _stop(cli, client, keepers, now=now)
    if stopped is _UNWANTED:
        return ExitCode.OK
    if stopped is not None and stopped.state is OperationState.SUPERSEDED:
        return _is_up_again(cli, run.name, stopped)
    return await _prove(cli, run, stopped, keepers)


async def _meant(cli: Cli) -> RunFile | None:
    """The run to be stopped: the one named, else the only one of which something lives."""
    known = [run for run in paths.list_runs() if not run.broken]
    name = cli.run or os.environ.get(RUN_VARIABLE)
    if name:
        return next((run for run in known if run.name == name), None)
    up = [run for run in known if keepers_of(paths.state_dir(run.name))]
    if not up and len(known) > 1:
        up = [run for run in known if (await cleanup_check.scan(run.uuid)).found]
    if len(up) > 1:
        raise UsageError(
            f"Several runs are up: {', '.join(run.name for run in up)}.", hint="Say which one: --run NAME."
        )
    if up:
        return up[0]
    return known[0] if len(known) == 1 else None


def _nothing(cli: Cli) -> ExitCode:
    name = cli.run or os.environ.get(RUN_VARIABLE) or ""
    what = f"There is no run named {name!r} on this host" if name else "No run is up on this host"
    sentence = f"{what}, in {paths.home()}; there is nothing to stop."
    if cli.json:
        output.emit({"run": name, "proven": True, "was_up": False, "lines": [sentence]})
    else:
        output.say(sentence)
    return ExitCode.OK


_UNWANTED = OperationRow("", "down", "", "", OperationState.CANCELLED, 0.0)
"""Stands for an operation that was not sent, or not waited for, because that was not wanted."""


async def _stop(cli: Cli, client: Client, keepers: list[Living], *, now: bool) -> OperationRow | None:
    """Have everything stopped. None if the coordinator was gone before it could tell how it ended."""
    send = await agreed(cli, client, "down", Down(now=now))
    if send is None:
        return _UNWANTED
    if not cli.wait:
        report_accepted(cli, await send())
        return _UNWANTED
    with Progress(cli) as progress:
        return await _Ending(cli, client, keepers, progress).run(send())


class _Ending:
    """Sends a `down` and waits for its end, with Ctrl-C as the way to hurry it.

    Units may be stopping before the answer is here, so Ctrl-C means the same from the moment of sending on.
    """

    def __init__(self, cli: Cli, client: Client, keepers: list[Living], progress: Progress) -> None:
        self._cli = cli
        self._client = client
        self._keepers = keepers
        self._progress = progress
        self._pressed: asyncio.Queue[None] = asyncio.Queue()

    async def run(self, sending: Awaitable[Accepted]) -> OperationRow | None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._pressed.put_nowait, None)
        try:
            return await self._wait(await self._accepted(sending))
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _accepted(self, sending: Awaitable[Accepted]) -> str:
        """The operation. One Ctrl-C meanwhile is answered afterwards; after two nobody waits for an answer."""
        call: asyncio.Future[Accepted] = asyncio.ensure_future(sending)
        pressed = 0
        try:
            while not call.done():
                key = asyncio.ensure_future(self._pressed.get())
                awaited: set[asyncio.Future[Any]] = {call, key}
                done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                pressed += key in done
                key.cancel()
                if pressed == 2 and not call.done():
                    raise KeyboardInterrupt
        finally:
            call.cancel()
        for _ in range(pressed):
            self._pressed.put_nowait(None)
        return call.result().operation

    async def _wait(self, operation: str) -> OperationRow | None:
        # A coordinator ends itself as its last act: its answer may be lost, its end is seen.
        gone: asyncio.Future[list[Living]] = asyncio.get_running_loop().create_future()
        if self._keepers:
            gone = asyncio.ensure_future(cleanup_check.until_gone(self._keepers))
        told = self._watch(operation)
        times = 0
        try:
            while True:
                key = asyncio.ensure_future(self._pressed.get())
                awaited: set[asyncio.Future[Any]] = {told, gone, key}
                done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                key.cancel()
                if key not in done:
                    return _result(told)
                times += 1
                told = await self._hurry(times, told)
        finally:
            told.cancel()
            gone.cancel()
            await asyncio.gather(told, gone, return_exceptions=True)

    def _watch(self, operation: str) -> asyncio.Future[OperationRow]:
        return asyncio.ensure_future(
            self._client.wait(operation, on_change=self._progress.operation, timeout_s=self._cli.timeout_s)
        )

    async def _hurry(self, times: int, told: asyncio.Future[OperationRow]) -> asyncio.Future[OperationRow]:
        """The second Ctrl-C kills, the third stops the waiting."""
        if times == 1:
            output.note("Units are finishing what is under way. Ctrl-C once more kills them.")
            return told
        if times == 2:
            output.note("Killing what is left. Ctrl-C once more stops the waiting.")
            accepted: Accepted = await self._client.call("down", Down(now=True))
            told.cancel()
            return self._watch(accepted.operation)
        output.note("No longer waiting; the stopping goes on. `agentrl down` proves later that nothing is left.")
        raise KeyboardInterrupt


def _result(told: asyncio.Future[OperationRow]) -> OperationRow | None:
    if not told.done():
        return None
    try:
        return told.result()
    except NoCoordinatorError:
        # It is gone before it could tell; whether everything ended is for the scan to say.
        return None


def _is_up_again(cli: Cli, name: str, row: OperationRow) -> ExitCode:
    sentence = f"The run {name} was not brought down: {ended(row.reason)}"
    if cli.json:
        output.emit({"run": name, "proven": False, "was_up": True, "operation": row, "lines": [sentence]})
    else:
        output.note(sentence)
    return ExitCode.CONFLICT


async def _prove(cli: Cli, run: RunFile, row: OperationRow | None, keepers: list[Living]) -> ExitCode:
    with Progress(cli) as progress:
        progress.step("waiting for agent and coordinator to end")
        left = await cleanup_check.until_gone(keepers, _KEEPERS_END_WITHIN_S)
        progress.step("looking at every process of this host")
        found = await cleanup_check.scan_until_empty(run.uuid, _TREES_END_WITHIN_S)
    return _tell(cli, run.name, row, found, left)


async def _remove_leftovers(cli: Cli, run: RunFile) -> ExitCode:
    """No coordinator answers: whatever is still there is named and removed."""
    found = await cleanup_check.scan(run.uuid)
    keepers = keepers_of(paths.state_dir(run.name))
    if not found.found and not keepers:
        if not cli.dry_run:
            forget_dead(paths.state_dir(run.name), run.uuid)
        return _was_not_up(cli, run, found)
    listed = {one.pid for one in found.found}
    names = [_named(one) for one in found.found]
    names += [f"{keeper.what} (pid {keeper.pid})" for keeper in keepers if keeper.pid not in listed]
    effect = Effect(kills=tuple(names))
    if cli.dry_run:
        report_preview(cli, effect, tier_of(effect))
        return ExitCode.OK
    output.note(f"No coordinator answers for {run.name}, but something of it is left.")
    if not consented(cli, effect, tier_of(effect)):
        output.note("Nothing was done.")
        return ExitCode.OK
    # The agents first: they would start the coordinator, and it the units, again.
    left = await cleanup_check.end(keepers)
    killed = await cleanup_check.scan(run.uuid, kill=True)
    after = await cleanup_check.scan_until_empty(run.uuid, _TREES_END_WITHIN_S)
    after = msgspec.structs.replace(after, killed=killed.killed or found.found)
    if not after.found:
        forget_dead(paths.state_dir(run.name), run.uuid)
    return _tell(cli, run.name, None, after, left)


def _was_not_up(cli: Cli, run: RunFile, found: ScanReport) -> ExitCode:
    sentence = f"The run {run.name} is not up: none of {found.examined} processes on {found.host} belongs to it."
    if cli.json:
        output.emit({"run": run.name, "proven": True, "was_up": False, "scan": found, "lines": [sentence]})
    else:
        output.say(sentence)
    return ExitCode.OK


def _named(process: ProcessInfo) -> str:
    """A process as a person knows it: whose it is, or else how it was started."""
    command = process.command if len(process.command) <= _COMMAND_SHOWN else f"{process.command[:_COMMAND_SHOWN]}…"
    return f"{process.incarnation or command} (pid {process.pid}, {process.why})"


def _tell(cli: Cli, name: str, row: OperationRow | None, found: ScanReport | None, left: list[Living]) -> ExitCode:
    """Say what was done, and whether it is proven that nothing is left."""
    lines = list(row.lines) if row is not None else []
    remaining = [f"{one.what} (pid {one.pid}) lives on" for one in left]
    if found is not None:
        # This host was looked at once more since; one line about it is enough.
        lines = [line for line in lines if not (line.startswith(f"{found.host}: ") and line.endswith(NONE_LEFT))]
        lines += [f"killed {_named(one)}" for one in found.killed]
        remaining += [f"{_named(one)} on {found.host}" for one in found.found]
    failed = f"{row.state}: {row.reason}" if row is not None and row.state is not OperationState.SUCCEEDED else ""
    proven = not remaining and not failed
    if proven and found is not None:
        lines.append(f"Nothing of {name} is left: none of {found.examined} processes on {found.host} belongs to it.")
    elif proven:
        lines.append("The run is down, says its coordinator.")
    if found is not None and found.unproven:
        lines.append(f"Not proven: {found.unproven}")
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
