"""Getting notifications to their sinks, and the sign of life that shows that they would arrive.

Invariants: to offer a notification never waits; each sink has a queue and a task of its own, so a slow one delays no
other; queues are bounded and what is dropped is counted; a sink that fails is tried again with growing pauses, and its
failure is itself visible until it works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.alerts import DeadMan, Sinks
from agentrl.control.alerts.book import Notification
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
from agentrl.control.records.files import replace_file
from agentrl.errors import DiskError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long a delivery is tried."""

    tries: int = 6
    first_pause_s: float = 1.0
    queue: int = 200


class Dispatcher:
    """All sinks of a run. `run` does the work; everything else returns at once."""

    def __init__(
        self,
        sinks: Iterable[Sink],
        *,
        on_trouble: Callable[[str, str], None] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._sinks = list(sinks)
        self._patience = patience or Patience()
        self._queues = {sink.name: deque[Notification]() for sink in self._sinks}
        self._wake = {sink.name: asyncio.Event() for sink in self._sinks}
        self._busy: set[str] = set()
        self._trouble: dict[str, str] = {}
        self._on_trouble = on_trouble

    @property
    def trouble(self) -> dict[str, str]:
        """By name of the sink: why its last delivery failed. Empty if all is well."""
        return dict(self._trouble)

    @property
    def idle(self) -> bool:
        """Everything that was offered has been delivered or given up."""
        return not self._busy and not any(self._queues.values())

    def offer(self, notification: Notification) -> None:
        """Send to every sink, soon."""
        for name, queue in self._queues.items():
            if len(queue) >= self._patience.queue:
                # The oldest goes: what is newest is what people need to know.
                lost = queue.popleft()
                self._say(name, f"Too many notifications wait for the sink {name}; one of {lost.alert.id} was dropped.")
            queue.append(notification)
            self._wake[name].set()

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
                    await self._deliver(sink, queue.popleft())
                finally:
                    self._busy.discard(sink.name)

    async def _deliver(self, sink: Sink, notification: Notification) -> None:
        pause_s = self._patience.first_pause_s
        for attempt in range(1, self._patience.tries + 1):
            why_not = await sink.deliver(notification)
            if not why_not:
                if self._trouble.pop(sink.name, None) is not None:
                    self._say(sink.name, "")
                return
            last = attempt == self._patience.tries
            self._say(sink.name, f"{why_not} Given up for {notification.alert.id}." if last else why_not)
            if not last:
                await asyncio.sleep(pause_s)
                pause_s *= 2

    def _say(self, name: str, sentence: str) -> None:
        if sentence:
            self._trouble[name] = sentence
            log.warning("sink %s: %s", name, sentence)
        if self._on_trouble is not None:
            self._on_trouble(name, sentence)


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
