"""Shows the progress of a wait on stderr: repainted in a terminal, otherwise as plain lines.

Invariants:
- Progress never writes to stdout, and never outlives the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

from agentrl.cli import output
from agentrl.cli.options import Cli
from agentrl.formatting.amounts import counted

if TYPE_CHECKING:
    from rich.live import Live

    from agentrl.protocol.rows import HostRow, OperationRow, UnitRow

_MOST_LINES = 12
_CHANGES = 6
_PLAIN_EVERY_S = 1.0
_STATUS_EVERY_S = 5.0
"""How often plain lines repeat the status of units."""


class Progress:
    """Shows the waits of a command and their duration."""

    def __init__(self, cli: Cli) -> None:
        self._color = cli.color
        self._alive = sys.stderr.isatty() and not cli.json
        self._quiet = cli.json
        self._live: Live | None = None
        self._began = time.monotonic()
        self._printed_at = float("-inf")
        self._printed: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        """The lines of the last print, without and with the status of units."""
        self._head = ""
        self._later: asyncio.TimerHandle | None = None
        """Prints lines that came too soon after the previous ones."""
        self._row: OperationRow | None = None
        self._status: dict[str, str] = {}
        self._problems: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Progress:
        if self._alive:
            from rich.live import Live

            self._live = Live(
                console=output.console(self._color, stderr=True),
                transient=True,
                refresh_per_second=8,
                auto_refresh=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._later is not None:
            self._later.cancel()

    def step(self, sentence: str) -> None:
        """A wait without an operation."""
        self._show(sentence, ())

    def units(self, waiting: tuple[str, ...]) -> None:
        """A wait for units that are ready but do not do their whole work yet."""
        self._show(f"waiting for {counted(len(waiting), 'units')}", waiting)

    def operation(self, row: OperationRow) -> None:
        """The current state of an operation."""
        self._row = row
        head = row.summary or row.command
        if row.state.ended:
            return
        waiting = (*row.waiting_for, *(line for lines in self._problems.values() for line in lines))
        # Without a terminal, an operation without waits needs no line.
        if waiting or self._live is not None:
            self._show(f"{head}: waiting for {len(row.waiting_for)}" if row.waiting_for else head, waiting)

    def unit(self, row: UnitRow) -> None:
        """The status of a unit, shown if the operation waits for it, and its problems, which are always shown."""
        self._status[row.unit] = row.status or row.phase
        before, self._problems[row.unit] = self._problems.get(row.unit, ()), problem_lines(row)
        if self._row is None:
            return
        if before != problem_lines(row) or any(_unit_of(line) == row.unit for line in self._row.waiting_for):
            self.operation(self._row)

    def host(self, row: HostRow) -> None:
        """The reason why a host is missing, which is always shown."""
        lines = (f"host {row.host}: {row.reason}",) if row.reason else ()
        before, self._problems[f"host {row.host}"] = self._problems.get(f"host {row.host}", ()), lines
        if self._row is not None and before != lines:
            self.operation(self._row)

    def _show(self, head: str, plain: tuple[str, ...]) -> None:
        lines = tuple(map(self._with_status, plain))
        if self._live is not None:
            from rich.console import Group

            shown = [output.cell(f"{head} · {output.age(time.monotonic() - self._began)}", "bold")]
            shown += [output.cell(f"  {line}") for line in lines[:_MOST_LINES]]
            if len(lines) > _MOST_LINES:
                shown.append(output.cell(f"  and {len(lines) - _MOST_LINES} more: {_states(lines)}"))
            self._live.update(Group(*shown), refresh=True)
        elif not self._quiet:
            self._print(head, plain, lines)

    def _with_status(self, line: str) -> str:
        status = self._status.get(_unit_of(line), "")
        return f"{line}: {status}" if status else line

    def _print(self, head: str, plain: tuple[str, ...], lines: tuple[str, ...]) -> None:
        """Print the changed lines. `plain` has no status of units: if only a status has changed, it is printed less
        often."""
        now = time.monotonic()
        known, shown = self._printed
        changed = [line for line in lines if line not in shown]
        due_s = _STATUS_EVERY_S if plain == known else _PLAIN_EVERY_S
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if not changed and (lines or head == self._head):
            return
        if (early_s := self._printed_at + due_s - now) > 0:
            # There may be no further change, so a timer prints the lines that are held back now. Without an event loop
            # the wait repeats its step anyway.
            with contextlib.suppress(RuntimeError):
                self._later = asyncio.get_running_loop().call_later(early_s, self._print, head, plain, lines)
            return
        self._printed, self._printed_at, self._head = (plain, lines), now, head
        more = f", and {len(changed) - _CHANGES} more" if len(changed) > _CHANGES else ""
        output.note(f"{head}: {', '.join(changed[:_CHANGES])}{more}" if changed else head)


def problem_lines(row: UnitRow) -> tuple[str, ...]:
    return tuple(f"{row.unit}: {of}: {why}" for of, why in row.problems.items())


def _unit_of(line: str) -> str:
    """The unit of a line such as `web-0 is pending (why)`."""
    return line.partition(" is ")[0]


def _states(lines: tuple[str, ...]) -> str:
    """The number of units in each state."""
    counts = Counter(line.partition(" is ")[2].partition(" ")[0] for line in lines if " is " in line)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
