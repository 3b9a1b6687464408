"""Runs the thread that owns the socket of a unit, so that heartbeats do not depend on the main loop.

Invariants:
- The main loop never touches the socket.
- Heartbeats go out while the main loop blocks.
- The thread ends the process when the incarnation was replaced, at the second SIGTERM, and when a stop takes too long,
  with a sentence in the log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from agentrl.errors import AgentrlError, ExitCode, ProtocolError
from agentrl.protocol import messages, wire
from agentrl.protocol.messages import served_commands
from agentrl.transport.curve_keys import ClientKey
from agentrl.transport.dealer import Dealer
from agentrl.unit.coordinator_protocol import Act, AnswerPreview, AnswerQuestion, CoordinatorProtocol, GiveUp
from agentrl.unit.signals import EndSignals
from agentrl.unit.unit import UnitParts

ANNOUNCE_WITHIN_S = 0.2
REPLACED_GRACE_S = 1.0
FLUSH_S = 0.5
LOOK_FOR_SIGNALS_EVERY_S = 1.0


class SocketThread:
    """Owns the socket, its event loop and the deadlines of one unit."""

    def __init__(
        self,
        parts: UnitParts,
        requests: EndSignals,
        *,
        term_deadline_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._environment = parts.environment
        self._key = ClientKey.load(parts.environment.key) if parts.environment.key else None
        self._flags = parts.flags
        self._knobs = parts.knobs
        self._commands = parts.commands
        self._protocol = CoordinatorProtocol(
            parts.environment, parts.state, parts.flags, parts.knobs, now=time.monotonic(), say=say
        )
        self._requests = requests
        self._term_deadline_s = term_deadline_s
        self._say = say
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="agentrl-speaker", daemon=True)
        self._dealer: Dealer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = False
        self._then: Callable[[], object] | None = None
        """Called after the Bye was read; from then on the thread does nothing else."""
        self._terms = 0
        self._kill_at = float("inf")
        self.given_up = False
        """True if this incarnation was replaced. It ends as refused, for any return value of its main loop."""
        self.first_answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done after the first answer of the coordinator, unless that answer ends this incarnation."""

    def start(self) -> None:
        if not self._environment.supervised:
            self.first_answer.set_result(None)
        self._thread.start()

    def wake(self) -> None:
        """Announce a change for the next report. Cheap if the thread was woken already."""
        if self._environment.supervised and not self._wanted:
            self._wanted = True
            self._call(self._turn)

    def report_soon(self) -> None:
        """Send a report at once; do not wait for it."""
        self._call(lambda: self._perform(self._protocol.report_now(time.monotonic())))

    def announce(self, at_most_s: float | None) -> None:
        """Report a long phase before its body runs; waits a moment for the report."""
        silent_s = at_most_s if at_most_s is not None else 0.0
        if not self._protocol.needs_announcement(silent_s, time.monotonic()):
            return
        sent = threading.Event()

        def send() -> None:
            self._perform(self._protocol.report_now(time.monotonic()))
            sent.set()

        self._call(send)
        sent.wait(ANNOUNCE_WITHIN_S)

    def extend(self, more_s: float) -> None:
        """Extend a stop that has begun to this much time from now."""

        def move() -> None:
            if self._kill_at < float("inf"):
                self._kill_at = max(self._kill_at, time.monotonic() + more_s)

        self._call(move)

    def finish(self, code: int, reason: str) -> None:
        """Send the Bye, wait a bounded time for it, and end the thread."""
        self._call(lambda: self._say_bye(code, reason, then=self._end))
        self._thread.join(3 * FLUSH_S)

    # ---- in the thread ----

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._requests.fileno(), self._look_for_signals)
        self._loop.call_soon(self._connect)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _connect(self) -> None:
        if self._environment.supervised:
            self._dealer = Dealer(
                self._environment.coordinator,
                key=self._key,
                on_message=self._received,
                on_connected=lambda: self._perform(self._protocol.connected(time.monotonic())),
                on_disconnected=self._protocol.disconnected,
                on_refused=lambda sentence: self._say(f"the connection is refused: {sentence}"),
            )
            self._dealer.start()
        self._turn()

    def _received(self, frame: bytes) -> None:
        try:
            message = wire.decode_from_coordinator(frame)
        except ProtocolError as broken:
            self._say(f"a message of the coordinator is ignored: {broken}")
            return
        self._perform(self._protocol.received(message, time.monotonic()))
        if self._then is not None:
            if self._protocol.farewell_read:
                self._then()
            return
        if not self.first_answer.done() and not self.given_up:
            self.first_answer.set_result(None)
        self._turn()

    def _turn(self) -> None:
        """Execute the acts that are due, and schedule the next turn."""
        if self._then is not None:
            return
        self._wanted = False
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        if self._environment.supervised:
            self._perform(self._protocol.due(now))
        self._look_for_signals()
        if now >= self._kill_at:
            self._kill("the time to finish is over; ending as things are")
            return
        next_at = self._protocol.next_at(now) if self._environment.supervised else now + LOOK_FOR_SIGNALS_EVERY_S
        soonest = min(next_at, self._kill_at, now + LOOK_FOR_SIGNALS_EVERY_S)
        self._timer = self._loop.call_later(max(0.0, soonest - now), self._turn)
        # If a report waits for its interval this thread turns anyway: further changes need not wake it.
        self._wanted = self._protocol.report_waits

    def _perform(self, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, AnswerPreview):
                threading.Thread(target=self._answer_preview, args=(act,), name="agentrl-preview", daemon=True).start()
            elif isinstance(act, AnswerQuestion):
                self._commands.begin(act.question, self._send_answer)
            elif isinstance(act, GiveUp):
                self._give_up(act.sentence)
            elif not self._send(act):
                self._protocol.not_sent()

    def _send(self, message: messages.FromUnit) -> bool:
        return self._dealer is not None and self._dealer.send(wire.encode(message))

    def _answer_preview(self, question: AnswerPreview) -> None:
        try:
            preview = self._knobs.preview(question.name, question.value)
            answer = messages.KnobPreviewed(question.ask, preview.sentence, preview.exact_undo, preview.loses)
        except AgentrlError as refused:
            answer = messages.KnobPreviewed(question.ask, "", error=str(refused))
        except Exception as broken:  # noqa: BLE001 - the preview is the unit's own code; its failure is the answer
            self._say(f"the preview of {question.name} failed: {broken!r}")
            answer = messages.KnobPreviewed(question.ask, "", error=f"The preview failed: {broken!r}.")
        self._call(lambda: self._perform([answer]))

    def _send_answer(self, answer: served_commands.UnitAnswer) -> None:
        """Send an answer, from any thread. Without a connection the answer is lost, and the caller has a deadline."""
        self._call(lambda: self._perform([answer]))

    def _look_for_signals(self) -> None:
        seen = self._requests.count()
        if seen == self._terms:
            return
        self._terms = seen
        if seen > 1:
            self._kill("received a second request to end; ending now")
            return
        self._say(f"received a request to end by a signal; {self._term_deadline_s:g} s to finish")
        self._kill_at = time.monotonic() + self._term_deadline_s
        self._flags.stop()
        self._turn()

    def _give_up(self, sentence: str) -> None:
        if self.given_up:
            return
        self.given_up = True
        self._say(f"this incarnation must end: {sentence}")
        self._flags.stop()
        self._loop.call_later(REPLACED_GRACE_S, lambda: self._exit(ExitCode.REFUSED))

    def _kill(self, sentence: str) -> None:
        code = 128 + signal.SIGTERM
        self._say(sentence)
        with contextlib.suppress(ValueError, OSError):
            faulthandler.dump_traceback(sys.stderr)
        self._say_bye(code, sentence, then=lambda: self._exit(code))

    def _exit(self, code: int) -> NoReturn:
        if self._dealer is not None:
            self._dealer.close()
        os._exit(code)

    def _say_bye(self, code: int, reason: str, *, then: Callable[[], object]) -> None:
        """Send the Bye; call `then` after the coordinator read it, or after a bounded time."""
        if self._then is not None:
            return
        self._then = then
        acts = self._protocol.farewell(code, reason, time.monotonic()) if self._environment.supervised else []
        self._perform(acts)
        self._loop.call_later(FLUSH_S if acts else 0.0, then)

    def _end(self) -> None:
        self._loop.remove_reader(self._requests.fileno())
        if self._dealer is not None:
            self._dealer.close()
        self._loop.stop()

    def _call(self, callback: Callable[[], None]) -> None:
        # The loop may have ended already.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)
