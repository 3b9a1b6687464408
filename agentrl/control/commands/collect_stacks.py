"""Executes the command `stacks`, which writes the stacks of all units, or of the named ones, into one file.

Invariants:
- The file names each host that does not answer, with the reason.
- The operation names the file only after it is complete.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from agentrl.control.commands import command_effects
from agentrl.control.commands.prepared import Prepared
from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.persistence.atomic_file import replace_file
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError
from agentrl.protocol import control_commands, messages
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import OperationState

_NAMED = 3
"""How many units the name of the file contains; the content names all."""


class Stacks:
    def __init__(self, context: Context, asks: PendingRequests) -> None:
        self._context = context
        self._asks = asks
        self._tasks: set[asyncio.Task[None]] = set()

    def prepare(self, args: control_commands.CollectStacks) -> Prepared:
        units = self._units(args)
        effect = Effect(changes=(f"the stacks of {', '.join(units) or 'all units'} go into one file",))

        def execute(operation: Operation) -> None:
            operation.by_itself = True
            collecting = self._collect(operation, units, file_name(args.units))
            task = asyncio.create_task(collecting, name="stacks")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return Prepared(effect, execute)

    def _units(self, args: control_commands.CollectStacks) -> tuple[str, ...]:
        """Resolves units, groups and incarnations (`web-0.7`) to units. Raises UnknownNameError or ConflictError."""
        state, found = self._context.state, dict[str, None]()
        for name in args.units:
            unit, _, life = name.rpartition(".")
            lives = (command_effects.present(state, unit, int(life)).unit,) if unit and life.isdecimal() else ()
            found |= dict.fromkeys(lives or command_effects.targets(state, name))
        return tuple(found)

    async def _collect(self, operation: Operation, units: tuple[str, ...], name: str) -> None:
        operations, clock = self._context.operations, self._context.clock
        hosts = sorted({s.host for s in self._context.state.slots.values() if not s.tree_gone and s.host})
        parts = await asyncio.gather(*(self._of_host(host, units) for host in hosts))
        text = "\n".join([*parts, f"==== coordinator ====\n{_own_stacks()}"])
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock.now()))
        path = Path(self._context.run.run_dir) / "stacks" / f"{name}-{stamp}.txt"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, text.encode(errors="replace"), mode=0o600, durable=False)
        except (AgentrlError, OSError) as failed:
            operations.finish(operation, OperationState.FAILED, clock.now(), str(failed))
            return
        operation.result = {"file": str(path), "units": sum(part.count("==== unit ") for part in parts)}
        operations.finish(operation, OperationState.SUCCEEDED, clock.now())

    async def _of_host(self, host: str, units: tuple[str, ...]) -> str:
        try:
            report = await self._asks.host(host, messages.DumpStacks(units), messages.StackReport)
        except AgentrlError as failed:
            return f"==== host {host}: {failed} ===="
        return "\n".join(f"==== unit {name} on {host} ====\n{text}" for name, text in sorted(report.stacks.items()))


def file_name(units: Sequence[str]) -> str:
    """The name of the file, which has the named units up to a limit."""
    first, more = tuple(dict.fromkeys(units)), ""
    if len(first) > _NAMED:
        first, more = first[:_NAMED], f"+{len(first) - _NAMED}-more"
    return f"{'+'.join(first) or 'all'}{more}"


def _own_stacks() -> str:
    return "\n".join(
        f"thread {ident}\n{''.join(traceback.format_stack(frame))}" for ident, frame in sys._current_frames().items()
    )
