"""Implements the protocol between a unit and its coordinator: takes events, returns acts. It has no socket and no
clock.

Invariants:
- Before the Welcome the unit sends nothing but its hello.
- A heartbeat is sent every `heartbeat_s`, independent of the main loop.
- Reports are sent at most twice a second, except for a report that announces a long phase.
- The orphan lease counts only time in which this process ran.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from agentrl import __version__
from agentrl.errors import AgentrlError
from agentrl.protocol import messages
from agentrl.protocol.knob import Knob, KnobValue
from agentrl.protocol.messages import FromCoordinator, FromUnit, served_commands
from agentrl.unit.control_flags import ControlFlags
from agentrl.unit.reported_state import ReportedState
from agentrl.unit.unit_environment import UnitEnvironment
from agentrl.unit.unit_knobs import KnobSet

REPORT_EVERY_S = 0.5
METRICS_EVERY_S = 1.0
HELLO_AGAIN_S = 2.0
HELLO_AFTER_REFUSAL_S = 10.0
ACK_EVERY = 5
"""Every fifth heartbeat requests an answer."""
ANNOUNCE_SLACK_S = 1.0


class AnswerPreview(NamedTuple):
    """Compute a preview in another thread, and send the answer."""

    ask: str
    name: str
    value: KnobValue


class AnswerQuestion(NamedTuple):
    """Let the main loop serve a command, and send its answer."""

    question: served_commands.AskUnit


class GiveUp(NamedTuple):
    """This incarnation was replaced or is unknown: end the process."""

    sentence: str


Act = FromUnit | AnswerPreview | AnswerQuestion | GiveUp


class CoordinatorProtocol:
    """Takes every event with the monotonic time `now`; returns the acts that follow."""

    def __init__(
        self,
        environment: UnitEnvironment,
        state: ReportedState,
        flags: ControlFlags,
        knobs: KnobSet,
        *,
        now: float,
        say: Callable[[str], None],
    ) -> None:
        self._environment = environment
        self._state = state
        self._flags = flags
        self._knobs = knobs
        self._say = say
        self.heartbeat_s = environment.heartbeat_s
        self.orphan_lease_s = environment.orphan_lease_s
        self.welcomed = False
        self.tolerated_until = 0.0
        """The time until which the coordinator tolerates silence, because of the phase in the last report."""
        self._connected = False
        self._orphaned = False
        self._last_received = now
        self._turned = now
        self._hello_at = now
        self._beat_at = now
        self._report_at = now
        self._metrics_at = now
        self._seq = 0
        self._reported: object = None
        self._farewell_seq: int | None = None
        self.farewell_read = False
        """The coordinator has read the Bye."""
        self._hello_sent: object = None

    # ---- events ----

    def connected(self, now: float) -> list[Act]:
        self._connected = True
        return self._hello(now)

    def disconnected(self) -> None:
        self._connected = self.welcomed = False

    def received(self, message: FromCoordinator, now: float) -> list[Act]:
        self._last_received = now
        if self._farewell_seq is not None:
            self._hear_after_farewell(message)
            return []
        match message:
            case messages.Welcome():
                return self._welcome(message, now)
            case messages.WhoAreYou():
                self.welcomed = False
                return self._hello(now)
            case messages.Refused():
                return self._refused(message, now)
            case messages.Drain():
                self._say(f"draining, at most {message.grace_s:g} s")
                self._flags.drain()
            case messages.CancelDrain():
                self._say("the drain is cancelled")
                self._flags.cancel_drain()
            case messages.SetPaused():
                self._pause(message.paused)
            case messages.SetKnob():
                self._set_knob(message.name, message.value)
            case messages.PreviewKnob():
                return [AnswerPreview(message.ask, message.name, message.value)]
            case served_commands.AskUnit():
                return [AnswerQuestion(message)]
            case served_commands.UnitDied():
                self._flags.died(f"{message.unit}.{message.incarnation}")
            case _:
                pass  # BeatAck only proves that the coordinator lives. Other messages are not for units.
        return self._due_report(now)

    def due(self, now: float) -> list[Act]:
        """Return the acts that are due now: a repeated hello, heartbeat, report, metrics, the end of the orphan
        lease.
        """
        self._watch_lease(now)
        if not self._connected:
            return []
        if not self.welcomed:
            return self._hello(now) if now >= self._hello_at else []
        acts: list[Act] = []
        if self._hello_sent != self._changeable_hello():
            acts += self._hello_message()
        if now >= self._beat_at:
            acts.append(self._beat(now))
        acts += self._due_report(now)
        if self._state.has_metrics and now >= self._metrics_at:
            self._metrics_at = now + METRICS_EVERY_S
            acts.append(messages.UnitMetrics(self._state.take_metrics()))
        return acts

    def next_at(self, now: float) -> float:
        """Return the time at which `due` must be called again if no event comes before."""
        lease = self._last_received + self.orphan_lease_s if not self._orphaned else float("inf")
        times = [lease, now + self.heartbeat_s]
        if not self.welcomed:
            return min(*times, self._hello_at) if self._connected else min(times)
        times.append(self._beat_at)
        if self.report_waits:
            times.append(self._report_at)
        if self._state.has_metrics:
            times.append(self._metrics_at)
        return min(times)

    def report_now(self, now: float) -> list[Act]:
        """Return the act that sends a report at once, without regard to the interval."""
        if not self.welcomed:
            return []
        self._report_at = now
        return self._due_report(now)

    def needs_announcement(self, at_most_s: float, now: float) -> bool:
        """Return whether the coordinator would treat a silence as long as this phase as death.

        Code that holds the GIL silences the thread of the socket too, so the report must precede the phase.
        """
        return (
            self.welcomed and at_most_s > self.heartbeat_s and self.tolerated_until < now + at_most_s - ANNOUNCE_SLACK_S
        )

    @property
    def report_waits(self) -> bool:
        return self.welcomed and self._reported != self._state_key()

    def not_sent(self) -> None:
        """Note that the last acts were not sent, so that the state is reported again."""
        self._reported = None

    def farewell(self, code: int, reason: str, now: float) -> list[Act]:
        if not self.welcomed:
            return []
        self._metrics_at = self._report_at = now
        last = [act for act in self.due(now) if not isinstance(act, messages.Beat)]
        # The answer to a heartbeat after the Bye proves that the Bye was read.
        self._seq += 1
        self._farewell_seq = self._seq
        closing = messages.Beat(self._seq, progress=self._state.progress, ack=True)
        return [*last, messages.Bye(code, reason), closing]

    # ---- parts ----

    def _hello(self, now: float) -> list[Act]:
        self._hello_at = now + HELLO_AGAIN_S
        return self._hello_message()

    def _changeable_hello(self) -> tuple[tuple[Knob, ...], bool]:
        """Return the parts of a hello that may change while the unit lives."""
        return self._knobs.declarations, self._flags.hears_deaths

    def _hello_message(self) -> list[Act]:
        self._hello_sent = declared, hears_deaths = self._changeable_hello()
        return [
            messages.UnitHello(
                major=messages.PROTOCOL_MAJOR,
                minor=messages.PROTOCOL_MINOR,
                run=self._environment.run,
                unit=self._environment.unit,
                incarnation=self._environment.incarnation,
                token=self._environment.token,
                pid=os.getpid(),
                ready=self._state.ready,
                version=__version__,
                declared=declared,
                hears_deaths=hears_deaths,
            )
        ]

    def _welcome(self, message: messages.Welcome, now: float) -> list[Act]:
        first, self.welcomed = not self.welcomed, True
        self.heartbeat_s = message.heartbeat_s
        self.orphan_lease_s = message.orphan_lease_s
        if self._orphaned:
            self._orphaned = False
            self._say("the coordinator is back; continuing")
            self._flags.cancel_drain()
        self._pause(message.paused)
        for name, value in message.knobs.items():
            self._set_knob(name, value)
        if first:
            self._reported = None
            self._report_at = self._beat_at = now
            self.tolerated_until = 0.0
        return self.due(now)

    def _refused(self, message: messages.Refused, now: float) -> list[Act]:
        sentence = f"{message.message} {message.hint}".strip()
        self.welcomed = False
        self._hello_at = now + HELLO_AFTER_REFUSAL_S
        if message.final:
            return [GiveUp(sentence)]
        self._say(f"refused by the coordinator: {sentence}")
        return []

    def _pause(self, paused: bool) -> None:
        if paused != self._flags.paused:
            self._flags.pause(paused)

    def _set_knob(self, name: str, value: KnobValue) -> None:
        try:
            self._knobs.offer(name, value)
        except AgentrlError as wrong:
            self._say(str(wrong))

    def _beat(self, now: float) -> messages.Beat:
        self._beat_at = now + self.heartbeat_s
        self._seq += 1
        turned = self._state.loop_turned
        short_lease = self.orphan_lease_s < 3 * ACK_EVERY * self.heartbeat_s
        return messages.Beat(
            seq=self._seq,
            progress=self._state.progress,
            loop_lag_s=0.0 if turned is None else max(0.0, now - turned),
            ack=short_lease or self._seq % ACK_EVERY == 0,
        )

    def _state_key(self) -> tuple[int, bool, bool]:
        return self._state.revision, self._flags.paused, self._flags.draining

    def _due_report(self, now: float) -> list[Act]:
        state = self._state_key()
        if not self.welcomed or state == self._reported or now < self._report_at:
            return []
        self._reported = state
        self._report_at = now + REPORT_EVERY_S
        report = self._state.report(now, paused=state[1], draining=state[2], knobs=self._knobs.in_force())
        self.tolerated_until = 0.0 if report.at_most_s is None else now + report.at_most_s - report.phase_age_s
        return [report]

    def _hear_after_farewell(self, message: FromCoordinator) -> None:
        match message:
            case messages.BeatAck(seq=seq) if seq == self._farewell_seq:
                self.farewell_read = True
            case messages.WhoAreYou() | messages.Refused():
                self.farewell_read = True  # The coordinator has removed this unit already.
            case _:
                pass

    def _watch_lease(self, now: float) -> None:
        asleep, self._turned = now - self._turned, now
        if asleep > 3 * self.heartbeat_s:
            self._last_received += asleep  # The process was stopped and could not receive anything.
        if not self._orphaned and now - self._last_received >= self.orphan_lease_s:
            self._orphaned = True
            self._say(
                f"no message from the coordinator for {self.orphan_lease_s:g} s; finishing the work at hand and ending"
            )
            self._flags.drain()
