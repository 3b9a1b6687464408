"""Schedules the probes of one process that does not use the unit runtime: readiness, liveness, metrics.

* Only changes are reported.
* `failures` failed requests in a row count as a failure, a single one does not.
* A process that has not become ready yet cannot fail its liveness probe.
* An answer at a port on which the unit does not listen makes the unit ready only if it still lives some seconds later.
* Probes end with their process and leave no child and no task behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from agentrl.host import probe_requests
from agentrl.host.child_processes import ChildProcesses
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import Probed, Scraped
from agentrl.protocol.specs import Probe

# Until its first success a readiness probe runs more often than its interval: a process that is ready after 0.1 s
# should not wait 2 s.
_FIRST_INTERVAL_S = 0.05
_GROWTH = 1.6
_MOST_METRICS = 256
_SETTLE_S = 0.3
"""A success counts if the process still lives this much later ..."""
_OTHER_LISTENER_S = 3.0
"""... or this much later if no process of the unit listens on the port, because another program may have answered."""


@dataclass
class Verdict:
    """The verdict from consecutive results."""

    failures: int
    ok: bool | None = None
    in_a_row: int = 0

    def changed_by(self, answer_ok: bool) -> bool:
        if answer_ok:
            self.in_a_row = 0
            changed = self.ok is not True
            self.ok = True
            return changed
        self.in_a_row += 1
        if self.in_a_row < max(1, self.failures) or self.ok is False:
            return False
        self.ok = False
        return True


@dataclass
class Prober:
    unit: str
    incarnation: int
    processes: ChildProcesses
    env: Mapping[str, str]
    cwd: str | None
    send: Callable[[Message], object]
    members: Callable[[], Collection[int]] = tuple
    """The processes of the incarnation; slow, so it is called in a thread."""
    ready: bool | None = None
    """The last result of the readiness probe."""
    live: bool | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _came_up: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, ready: Probe | None, live: Probe | None, metrics: Probe | None, start_deadline_s: float) -> None:
        if ready is not None:
            self._begin("ready", self._watch("ready", ready))
        if live is not None:
            self._begin("live", self._watch_life(live, start_deadline_s, follows_readiness=ready is not None))
        if metrics is not None:
            self._begin("metrics", self._scrape(metrics))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _begin(self, kind: str, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"{kind} probe of {self.unit}.{self.incarnation}"))

    async def _watch_life(self, probe: Probe, start_deadline_s: float, *, follows_readiness: bool) -> None:
        if follows_readiness:
            try:
                async with asyncio.timeout(start_deadline_s):
                    await self._came_up.wait()
            except TimeoutError:
                pass  # the time for the first success is over: from now on a missing answer counts
            await self._watch("live", probe)
            return
        await self._watch("live", probe, patience_s=start_deadline_s)

    async def _watch(self, kind: str, probe: Probe, patience_s: float = 0.0) -> None:
        """Repeat the probe for ever. Failures before the first success do not count during the initial patience."""
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + patience_s
        verdict = Verdict(probe.failures)
        pause_s = min(_FIRST_INTERVAL_S, probe.interval_s)
        while True:
            answer = await probe_requests.run_probe(probe, self.processes, self.env, self.cwd)
            if kind == "ready" and answer.ok and verdict.ok is not True:
                await self._confirm(probe)
            too_early = verdict.ok is None and loop.time() < patient_until
            if (answer.ok or not too_early) and verdict.changed_by(answer.ok):
                self._report(kind, answer)
            # Failures count only if they are an interval apart, so that a slow start does not count as a failure.
            pause_s = probe.interval_s if verdict.ok is not None else min(pause_s * _GROWTH, probe.interval_s)
            if verdict.ok is None and pause_s < probe.interval_s:
                verdict.in_a_row = 0
            await asyncio.sleep(pause_s)

    async def _confirm(self, probe: Probe) -> None:
        """Return when the first success counts. If the process ends before, this task is cancelled."""
        port = probe_requests.port_here(probe)
        if not port:
            await asyncio.sleep(_SETTLE_S)
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _OTHER_LISTENER_S
        while not await asyncio.to_thread(self._listens, port) and loop.time() < until:
            await asyncio.sleep(_SETTLE_S)

    def _listens(self, port: int) -> bool:
        return listens(self.members(), port)

    def _report(self, kind: str, answer: probe_requests.ProbeResult) -> None:
        if kind == "ready":
            self.ready = answer.ok
            if answer.ok:
                self._came_up.set()
        else:
            self.live = answer.ok
        self.send(Probed(self.unit, self.incarnation, kind, answer.ok, answer.detail))

    async def _scrape(self, probe: Probe) -> None:
        while True:
            answer = await probe_requests.run_probe(probe, self.processes, self.env, self.cwd)
            if answer.ok and (values := parse_metrics(answer.body)):
                self.send(Scraped(self.unit, self.incarnation, values))
            await asyncio.sleep(probe.interval_s)


def parse_metrics(body: bytes) -> dict[str, float]:
    """Parse Prometheus' text format; labels stay part of the name. Skips values that are not numbers."""
    values: dict[str, float] = {}
    for line in body.decode(errors="replace").splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, rest = _split_sample(line)
        try:
            value = float(rest.split()[0])
        except (ValueError, IndexError):
            continue
        if name and math.isfinite(value) and len(values) < _MOST_METRICS:
            values[name] = value
    return values


def _split_sample(line: str) -> tuple[str, str]:
    if "{" in line:
        labels, brace, rest = line.rpartition("}")
        return (labels + brace, rest) if brace else ("", "")
    name, _, rest = line.partition(" ")
    return name, rest


def listens(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes listens at the TCP port. The sockets of other users cannot be seen."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    return False
