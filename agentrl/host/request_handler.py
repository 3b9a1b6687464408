"""Handles the coordinator's requests to a host agent: ranges of logs, scans, stacks.

A request may take long, so its work never runs on the loop that supervises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agentrl.errors import UnknownNameError
from agentrl.host import process_scan, stack_dumps
from agentrl.host.incarnation import Incarnation, Services
from agentrl.protocol.messages import DumpStacks, LogChunk, ReadLog, ScanReport, ScanRun, StackReport
from agentrl.protocol.specs import incarnation_name

_STACKS_CHARS = 1 << 20


class RequestHandler:
    def __init__(self, services: Services, incarnations: Mapping[str, Incarnation]) -> None:
        self._services = services
        self._incarnations = incarnations

    async def to(self, what: ReadLog | ScanRun | DumpStacks) -> LogChunk | ScanReport | StackReport:
        """The answer to a request. Raises AgentrlError or OSError if there is none."""
        match what:
            case ReadLog():
                return await self._log(what)
            case ScanRun():
                home, in_cgroups = self._services.home, self._services.cgroups.can_kill
                return await asyncio.to_thread(
                    process_scan.scan, home.run, home.host, kill=what.kill, control=False, in_cgroups=in_cgroups
                )
            case DumpStacks():
                return await self._stacks(what)

    async def _log(self, what: ReadLog) -> LogChunk:
        logs = self._services.logs
        try:
            return await asyncio.to_thread(logs.read, what.unit, what.incarnation, what.offset, what.limit)
        except FileNotFoundError:
            raise self._no_log(what) from None

    def _no_log(self, what: ReadLog) -> UnknownNameError:
        incarnation = self._incarnations.get(incarnation_name(what.unit, what.incarnation))
        if incarnation is not None and incarnation.alive:
            return UnknownNameError(
                f"The log of {incarnation.name} was removed while it runs: what it writes from now on is lost.",
                hint=f"`agentrl restart {what.unit}` starts a new one.",
            )
        host, numbers = self._services.home.host, self._services.logs.incarnations(what.unit)
        if what.incarnation < 0 and len(numbers) == 1:
            return UnknownNameError(
                f"{what.unit}.{numbers[0]} is the only incarnation of {what.unit} on {host}: there is no earlier one.",
                hint=f"`agentrl logs {what.unit}` shows its log.",
            )
        return UnknownNameError(f"{what.unit} has no such log on {host}.")

    async def _stacks(self, what: DumpStacks) -> StackReport:
        wanted = [
            incarnation
            for incarnation in self._incarnations.values()
            if incarnation.alive
            and (not what.units or incarnation.entry.unit in what.units or incarnation.name in what.units)
        ]
        texts = await asyncio.gather(*map(self._stack, wanted))
        # All stacks must fit into one message. The innermost frames come first, so the end is cut off.
        each = _STACKS_CHARS // max(1, len(wanted))
        return StackReport(
            host=self._services.home.host,
            stacks={incarnation.name: text[:each] for incarnation, text in zip(wanted, texts, strict=True)},
        )

    async def _stack(self, incarnation: Incarnation) -> str:
        process = incarnation.process
        if process is None:
            return "It has ended."
        return await stack_dumps.of_process(
            process, self._services.home.run_dir, incarnation.name, speaks=incarnation.entry.spec.speaks
        )
