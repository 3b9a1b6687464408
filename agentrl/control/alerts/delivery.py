"""Getting notifications to their sinks, and the sign of life that shows that they would arrive.

Invariants: to offer a notification never waits; each sink has a queue and a task of its own, so a slow one delays no
other; queues are bounded and what is dropped is said; a sink that fails is tried again with growing pauses, and its
failure is itself visible until it works again; other sinks take over what waits for those of the same name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.alerts import DeadMan, Sinks
from agentrl.control.alerts.lifecycle import Notification
from agentrl.control.alerts.sinks import (
    DEADLINE_S,
    ExecSink,
    FileSink,
    MailSink,
    Sink,
    WebhookSink,
    request,
    run_command,
)
from agentrl.control.persistence.atomic_file import replace_file
from agentrl.errors import DiskError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long a delivery is tried."""

    tries: int = 6
    first_pause_s: float = 1.0
    queue: int = 200


@dataclass(eq=False, slots=True)
class Errand:
    """One notification on its way to several sinks."""

    notification: Notification
    left: set[str]
    """Sinks that have it still before them."""
    arrived: bool = False
    """At one sink at least."""


class Dispatcher:
    """All sinks of a run. `run` does the work; everything else returns at once.

    `on_arrived` is called when all sinks are through with a notification and one of them at least took it. What still
    waits for a `former` dispatcher's sinks goes to those of the same name.
    """

    def __init__(
        self,
        sinks: Iterable[Sink],
        *,
        on_trouble: Callable[[str, str], None] | None = None,
        on_arrived: Callable[[Notification], None] | None = None,
        patience: Patience | None = None,
        former: Dispatcher | None = None,
    ) -> None:
        self._sinks = list(sinks)
        self._patience = patience or Patience()
        self._queues = {sink.name: deque[Errand]() for sink in self._sinks}
        self._wake = {sink.name: asyncio.Event() for sink in self._sinks}
        self._busy: set[str] = set()
        self._trouble: dict[str, str] = {}
        self._on_trouble = on_trouble
        self._on_arrived = on_arrived
        if former is not None:
            self._take_over(former)

    @property
    def trouble(self) -> dict[str, str]:
        """By name of the sink: why its last delivery failed. Empty if all is well."""
        return dict(self._trouble)

    @property
    def idle(self) -> bool:
        """Everything that was offered has been delivered or given up."""
        return not any(self._queues.values())

    def offer(self, notification: Notification) -> None:
        """Send to every sink, soon."""
        errand = Errand(notification, set(self._queues))
        for name, queue in self._queues.items():
            under_way = name in self._busy
            if len(queue) - under_way >= self._patience.queue:
                # The oldest goes: what is newest is what people need to know.
                lost = queue[under_way]
                del queue[under_way]
                id = lost.notification.alert.id
                self._say(name, f"Too many notifications wait for the sink {name}; one of {id} was dropped.")
                self._through(lost, name, arrived=False)
            queue.append(errand)
            self._wake[name].set()

    def _take_over(self, former: Dispatcher) -> None:
        for name, queue in former._queues.items():
            if name in self._queues:
                self._queues[name] = queue
                self._wake[name].set()
            else:
                for errand in queue:
                    self._through(errand, name, arrived=False)

    def _through(self, errand: Errand, name: str, *, arrived: bool) -> None:
        errand.left.discard(name)
        errand.arrived |= arrived
        if not errand.left and errand.arrived and self._on_arrived is not None:
            self._on_arrived(errand.notification)

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for sink in self._sinks:
                tasks.create_task(self._serve(sink), name=f"sink {sink.name}")

    async def test(self, notification: Notification) -> dict[str, str]:
        """Send a notification through every sink, once and now; empty sentences are good news."""
        answers = await asyncio.gather(*(sink.deliver(notification) for sink in self._sinks))
        return {sink.name: answer for sink, answer in zip(self._sinks, answers, strict=True)}

    async def _serve(self, sink: Sink) -> None:
        queue, wake = self._queues[sink.name], self._wake[sink.name]
        while True:
            await wake.wait()
            wake.clear()
            while queue:
                self._busy.add(sink.name)
                try:
                    # It stays in the queue until it is through: who takes this sink over finds it there.
                    arrived = await self._deliver(sink, queue[0].notification)
                finally:
                    self._busy.discard(sink.name)
                self._through(queue.popleft(), sink.name, arrived=arrived)

    async def _deliver(self, sink: Sink, notification: Notification) -> bool:
        """False if it was given up."""
        pause_s = self._patience.first_pause_s
        for attempt in range(1, self._patience.tries + 1):
            why_not = await _try(sink, notification)
            if not why_not:
                if self._trouble.pop(sink.name, None) is not None:
                    self._say(sink.name, "")
                return True
            last = attempt == self._patience.tries
            self._say(sink.name, f"{why_not} Given up for {notification.alert.id}." if last else why_not)
            if not last:
                await asyncio.sleep(pause_s)
                pause_s *= 2
        return False

    def _say(self, name: str, sentence: str) -> None:
        if sentence:
            self._trouble[name] = sentence
            log.warning("sink %s: %s", name, sentence)
        if self._on_trouble is not None:
            self._on_trouble(name, sentence)


async def _try(sink: Sink, notification: Notification) -> str:
    """A sentence if it did not arrive, whatever the reason: one notification must not stop those behind it."""
    try:
        return await sink.deliver(notification)
    except Exception as unforeseen:
        log.exception("the sink %s failed", sink.name)
        return f"The sink {sink.name} failed: {unforeseen!r}."


class SignOfLife:
    """The dead-man ping: somebody outside notices when it stops."""

    def __init__(self, declared: DeadMan, run_dir: Path, clock: Callable[[], float]) -> None:
        self._declared = declared
        self._run_dir = run_dir
        self._clock = clock
        self.trouble = ""
        """Why the last ping failed; empty if it did not."""

    async def ping(self) -> str:
        """One sign of life; a sentence if it did not get through."""
        deadline_s = min(DEADLINE_S, self._declared.every_s)
        if self._declared.exec:
            return await run_command(self._declared.exec, b"", {}, deadline_s)
        if self._declared.url is not None:
            return await request("GET", self._declared.url, b"", deadline_s)
        try:
            replace_file(
                self._run_dir / self._declared.file, f"{self._clock():.0f}\n".encode(), mode=0o644, durable=False
            )
        except DiskError as full:
            return full.message
        return ""

    async def run(self) -> None:
        """Ping until cancelled."""
        while True:
            sentence = await self.ping()
            if sentence and sentence != self.trouble:
                log.warning("dead-man ping: %s", sentence)
            self.trouble = sentence
            await asyncio.sleep(self._declared.every_s)


def sinks_of(declared: Sinks, run_dir: Path) -> list[Sink]:
    """The sinks that a run's configuration names."""
    sinks: list[Sink] = []
    if declared.file is not None:
        sinks.append(FileSink(run_dir / declared.file.path))
    if declared.exec is not None:
        sinks.append(ExecSink(declared.exec.command))
    if declared.webhook is not None:
        sinks.append(WebhookSink(declared.webhook.url))
    if declared.mail is not None:
        mail = declared.mail
        sinks.append(MailSink(mail.to, mail.sender, mail.host, mail.port))
    return sinks
