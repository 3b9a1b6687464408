"""Delivers notifications to sinks, and sends the dead-man ping.

Invariants:
- `offer` never waits.
- Each sink has its own queue and task, so a slow sink delays no other.
- A full queue drops its oldest notification and logs that.
- A failed delivery is retried with growing pauses, and the failure stays visible until the sink works again.
- A new dispatcher takes over the queues of sinks of the same name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.alerts import DeadMan, Sinks
from agentrl.control.alerts.alert_states import Notification
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
class RetryLimits:
    tries: int = 6
    first_pause_s: float = 1.0
    queue: int = 200


@dataclass(eq=False, slots=True)
class Queued:
    """A notification on its way to several sinks."""

    notification: Notification
    left: set[str]
    """Sinks that have not tried it yet."""
    delivered: bool = False
    """True if at least one sink took it."""


class Dispatcher:
    """Delivers to all sinks of a run. `run` does the work; all other methods return at once.

    `on_delivered` is called when all sinks are done with a notification and at least one took it.
    """

    def __init__(
        self,
        sinks: Iterable[Sink],
        *,
        on_failure: Callable[[str, str], None] = lambda sink, sentence: None,
        on_delivered: Callable[[Notification], None] = lambda notification: None,
        limits: RetryLimits | None = None,
        previous: Dispatcher | None = None,
    ) -> None:
        self.failures: dict[str, str] = {}
        """The reason why the last delivery failed, by name of the sink."""
        self._sinks = list(sinks)
        self._limits = limits or RetryLimits()
        self._queues = {sink.name: deque[Queued]() for sink in self._sinks}
        self._wake = {sink.name: asyncio.Event() for sink in self._sinks}
        self._busy: set[str] = set()
        self._on_failure = on_failure
        self._on_delivered = on_delivered
        for name, queue in previous._queues.items() if previous is not None else ():
            if name in self._queues:
                self._queues[name] = queue
                self._wake[name].set()
            else:
                for queued in queue:
                    self._done(queued, name, delivered=False)

    @property
    def idle(self) -> bool:
        """Whether every offered notification was delivered or given up."""
        return not any(self._queues.values())

    def offer(self, notification: Notification) -> None:
        """Queues a notification for every sink."""
        queued = Queued(notification, set(self._queues))
        for name, queue in self._queues.items():
            in_delivery = name in self._busy
            if len(queue) - in_delivery >= self._limits.queue:
                # The oldest is dropped, because people need the newest.
                lost = queue[in_delivery]
                del queue[in_delivery]
                id = lost.notification.alert.id
                self._failed(name, f"Too many notifications wait for the sink {name}; one of {id} was dropped.")
                self._done(lost, name, delivered=False)
            queue.append(queued)
            self._wake[name].set()

    def _done(self, queued: Queued, name: str, *, delivered: bool) -> None:
        queued.left.discard(name)
        queued.delivered |= delivered
        if not queued.left and queued.delivered:
            self._on_delivered(queued.notification)

    async def run(self) -> None:
        """Delivers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for sink in self._sinks:
                tasks.create_task(self._serve(sink), name=f"sink {sink.name}")

    async def test(self, notification: Notification) -> dict[str, str]:
        """Sends a notification through every sink once. Returns for each sink the reason of its failure; empty if it
        succeeded."""
        answers = await asyncio.gather(*(_try(sink, notification) for sink in self._sinks))
        return {sink.name: answer for sink, answer in zip(self._sinks, answers, strict=True)}

    async def _serve(self, sink: Sink) -> None:
        queue, wake = self._queues[sink.name], self._wake[sink.name]
        while True:
            await wake.wait()
            wake.clear()
            while queue:
                self._busy.add(sink.name)
                try:
                    # A notification stays in the queue while it is delivered, so that a new dispatcher finds it there.
                    delivered = await self._deliver(sink, queue[0].notification)
                finally:
                    self._busy.discard(sink.name)
                self._done(queue.popleft(), sink.name, delivered=delivered)

    async def _deliver(self, sink: Sink, notification: Notification) -> bool:
        """Returns False if all tries failed."""
        pause_s = self._limits.first_pause_s
        for left in range(self._limits.tries - 1, -1, -1):
            why_not = await _try(sink, notification)
            if not why_not:
                if self.failures.pop(sink.name, None) is not None:
                    self._on_failure(sink.name, "")
                return True
            self._failed(sink.name, why_not if left else f"{why_not} Given up for {notification.alert.id}.")
            if left:
                await asyncio.sleep(pause_s)
                pause_s *= 2
        return False

    def _failed(self, name: str, sentence: str) -> None:
        self.failures[name] = sentence
        log.warning("sink %s: %s", name, sentence)
        self._on_failure(name, sentence)


async def _try(sink: Sink, notification: Notification) -> str:
    """Returns a sentence if the delivery failed for any reason: one notification must not stop those after it."""
    try:
        return await sink.deliver(notification)
    except Exception as unforeseen:
        log.exception("the sink %s failed", sink.name)
        return f"The sink {sink.name} failed: {unforeseen!r}."


class DeadManPing:
    """Sends a sign of life at regular intervals. A person or program outside notices when it stops."""

    def __init__(self, declared: DeadMan, run_dir: Path, clock: Callable[[], float]) -> None:
        self._declared = declared
        self._run_dir = run_dir
        self._clock = clock
        self.failure = ""
        """The reason why the last ping failed; empty if it succeeded."""

    async def ping(self) -> str:
        """Sends one sign of life. Returns a sentence if it failed."""
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
        """Pings until cancelled."""
        while True:
            sentence = await self.ping()
            if sentence and sentence != self.failure:
                log.warning("dead-man ping: %s", sentence)
            self.failure = sentence
            await asyncio.sleep(self._declared.every_s)


def sinks_of(declared: Sinks, run_dir: Path) -> list[Sink]:
    """The sinks that the run file declares."""
    sinks: list[Sink] = []
    if declared.file is not None:
        sinks.append(FileSink(run_dir / declared.file.path))
    if declared.exec is not None:
        sinks.append(ExecSink(declared.exec.command))
    if declared.webhook is not None:
        sinks.append(WebhookSink(declared.webhook.url))
    if (mail := declared.mail) is not None:
        sinks.append(MailSink(mail.to, mail.sender, mail.host, mail.port))
    return sinks
