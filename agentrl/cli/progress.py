"""What is shown while a command is waited for: on stderr, alive in a terminal, plain lines elsewhere.

Invariant: progress never writes to stdout, and never outlives the wait.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

from agentrl.cli import output
from agentrl.cli.verbs import Cli

if TYPE_CHECKING:
    from rich.live import Live

    from agentrl.protocol.rows import OperationRow

_MOST_LINES = 12
_PLAIN_EVERY_S = 1.0


class Progress:
    """Shows what is waited for, and for how long."""

    def __init__(self, cli: Cli) -> None:
        self._color = cli.color
        self._alive = sys.stderr.isatty() and not cli.json
        self._quiet = cli.json
        self._live: Live | None = None
        self._began = time.monotonic()
        self._printed_at = float("-inf")
        self._printed = ""

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

    def step(self, sentence: str) -> None:
        """Something that is waited for and is no operation."""
        self._show(sentence, ())

    def operation(self, row: OperationRow) -> None:
        """An operation as it is now."""
        head = row.summary or row.command
        if row.state.ended:
            return
        waiting = row.waiting_for
        # Without a terminal only what takes time is worth a line.
        if waiting or self._live is not None:
            self._show(f"{head}: waiting for {len(waiting)}" if waiting else head, waiting)

    def _show(self, head: str, lines: tuple[str, ...]) -> None:
        if self._live is not None:
            from rich.console import Group

            shown = [output.cell(f"{head} · {output.age(time.monotonic() - self._began)}", "bold")]
            shown += [output.cell(f"  {line}") for line in lines[:_MOST_LINES]]
            if len(lines) > _MOST_LINES:
                shown.append(output.cell(f"  and {len(lines) - _MOST_LINES} more: {_states(lines)}"))
            self._live.update(Group(*shown), refresh=True)
        elif not self._quiet:
            self._print(f"{head}: {', '.join(lines[:6])}" if lines else head)

    def _print(self, line: str) -> None:
        now = time.monotonic()
        if line != self._printed and now - self._printed_at >= _PLAIN_EVERY_S:
            self._printed, self._printed_at = line, now
            output.note(line)


def _states(lines: tuple[str, ...]) -> str:
    """How many are in which state; a line says `web-0 is pending (why)`."""
    counts = Counter(line.partition(" is ")[2].partition(" ")[0] for line in lines if " is " in line)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
