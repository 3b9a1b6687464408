"""Executes commands on a whole run (up, down, runs forget, runs wipe) in stages: prepare, ask, act, then commit or roll
back.

Invariants:
- All preparations of a command are rolled back at any end before its commit.
- Ctrl-C and SIGTERM before the commit roll back and report the remains; after it they end only the waiting.
- A terminal that closes before the commit does not end the command, which continues without output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any, Self

from agentrl.cli import output
from agentrl.cli.execute import consented, report_preview
from agentrl.cli.options import Cli
from agentrl.errors import ExitCode
from agentrl.protocol.effects import Effect, tier_of

NOTHING_DONE = "Nothing was done."


class Signals:
    """Handles Ctrl-C, SIGTERM and a closed terminal for the running command.

    SIGHUP has a handler instead of SIG_IGN, because started processes would inherit SIG_IGN. The streams of a closed
    terminal lead to /dev/null, because writing to it would be an error.
    """

    def __init__(self) -> None:
        self.terminal_closed = False
        self.terminated = False
        self.presses: asyncio.Queue[None] = asyncio.Queue()
        """One item for each Ctrl-C after `count_presses`."""
        self._counting = False

    def __enter__(self) -> Self:
        self._on_hangup: Any = signal.signal(signal.SIGHUP, self._close_terminal)
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._loop.add_signal_handler(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *_: object) -> None:
        self.committed()
        self.stop_counting()
        self._loop.remove_signal_handler(signal.SIGTERM)

    def committed(self) -> None:
        """Let a closed terminal end the command from now on."""
        signal.signal(signal.SIGHUP, self._on_hangup)

    def count_presses(self) -> None:
        """Count presses of Ctrl-C from now on, which the command reads from `presses`, instead of ending the
        command.
        """
        self._counting = True
        self._loop.add_signal_handler(signal.SIGINT, self.presses.put_nowait, None)

    def stop_counting(self) -> None:
        """Let Ctrl-C end the command again."""
        if self._counting:
            self._loop.remove_signal_handler(signal.SIGINT)
        self._counting = False

    def _terminate(self) -> None:
        self.terminated = True
        assert self._task is not None
        self._task.cancel()

    def _close_terminal(self, *_: object) -> None:
        self.terminal_closed = True
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


class Transaction:
    """One command on a whole run, in stages that `carry_out` calls in this order."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self.signals = Signals()
        self.resources = contextlib.AsyncExitStack()
        """Connections and the like, which end with the transaction."""

    async def prepare(self) -> None:
        """Prepare everything that must precede the question. Raises if the command is impossible."""

    async def consent(self) -> bool:
        """Whether the command may act. A dry run prints its effect here and then returns no consent."""
        raise NotImplementedError

    async def act(self) -> None:
        """Change the run."""
        raise NotImplementedError

    async def roll_back(self, cause: BaseException | None) -> str:
        """Undo the preparation and return a sentence about the remains; `cause` is None without consent."""
        return ""

    def commit(self) -> None:
        """Make the preparation permanent."""

    async def finish(self) -> ExitCode:
        """Wait until the started change has ended, and report it."""
        raise NotImplementedError


class LocalTransaction(Transaction):
    """A change that no coordinator makes: its effect is computed here, in `prepare`."""

    effect = Effect()

    async def consent(self) -> bool:
        if self.cli.dry_run:
            report_preview(self.cli, self.effect, tier_of(self.effect))
            return False
        if self.confirmed():
            return True
        output.note(NOTHING_DONE)
        return False

    def confirmed(self) -> bool:
        return consented(self.cli, self.effect, tier_of(self.effect))


async def carry_out(transaction: Transaction) -> ExitCode:
    """Run a transaction through its stages."""
    with transaction.signals as signals:
        try:
            async with transaction.resources:
                return await _stages(transaction)
        except asyncio.CancelledError:
            if signals.terminated:
                raise KeyboardInterrupt from None
            raise


async def _stages(transaction: Transaction) -> ExitCode:
    cause: BaseException | None = None
    try:
        await transaction.prepare()
        if acts := await transaction.consent():
            await transaction.act()
    except BaseException as error:
        acts, cause = False, error
        raise
    finally:
        if not acts and (left := await transaction.roll_back(cause)):
            output.note(left)
    if not acts:
        return ExitCode.OK
    transaction.commit()
    transaction.signals.committed()
    return ExitCode.OK if transaction.signals.terminal_closed else await transaction.finish()
