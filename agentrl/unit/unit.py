"""Defines the object that a main loop uses to act as a unit.

Invariants:
- Every method may be called from any thread or task.
- No method waits for the coordinator, except that a long phase is announced before its body runs (a fraction of a
  second at most).
- All methods work without a coordinator.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentrl.protocol.knob import Boundary, Knob
from agentrl.protocol.messages import UnitPart, Wait
from agentrl.tracing import spans, trace_context
from agentrl.unit.command_server import Handler, ServedCommands
from agentrl.unit.control_flags import ControlFlags
from agentrl.unit.reported_state import ReportedState
from agentrl.unit.unit_environment import UnitEnvironment
from agentrl.unit.unit_knobs import KnobSet, LiveKnob, Preview, T


class Connection(Protocol):
    """Describes what a unit needs of the connection to its coordinator; `SocketThread` provides it."""

    def wake(self) -> None: ...
    def report_soon(self) -> None: ...
    def announce(self, at_most_s: float | None) -> None: ...
    def extend(self, more_s: float) -> None: ...


@dataclass
class UnitParts:
    """Holds the state that the runner, the thread of the socket and the main loop of one unit share."""

    environment: UnitEnvironment
    flags: ControlFlags = field(default_factory=ControlFlags)
    commands: ServedCommands = field(default_factory=ServedCommands)
    connection: Connection | None = None
    """None until the runner has started the thread of the socket."""
    loop: asyncio.AbstractEventLoop | None = None
    """The loop of an `async def` main loop."""
    state: ReportedState = field(init=False)
    knobs: KnobSet = field(init=False)

    def __post_init__(self) -> None:
        self.state = ReportedState(on_change=self.wake)
        self.knobs = KnobSet(self.state.changed)

    def wake(self) -> None:
        if self.connection is not None:
            self.connection.wake()

    def call_back(self, callback: Callable[[], object]) -> None:
        """Call a function on the main loop if that is an asyncio loop, else in a thread of its own."""
        if self.loop is None:
            threading.Thread(target=_guarded, args=(callback,), name="agentrl-callback", daemon=True).start()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_guarded, callback)


class Unit:
    """Connects a main loop with its coordinator. `run_unit` and `arun_unit` create it."""

    def __init__(self, parts: UnitParts) -> None:
        self._created_at = time.time()
        self._parts = parts
        self._environment = parts.environment
        self._flags = parts.flags
        self._state = parts.state
        self._knobs = parts.knobs

    # ---- identity ----

    @property
    def name(self) -> str:
        """`web-0`"""
        return self._environment.unit

    @property
    def group(self) -> str:
        return self._environment.group

    @property
    def slot(self) -> int:
        return self._environment.slot

    @property
    def incarnation(self) -> int:
        return self._environment.incarnation

    @property
    def run(self) -> str:
        """The uuid of its run; empty for a unit that runs on its own."""
        return self._environment.run

    @property
    def run_dir(self) -> Path:
        return self._environment.run_dir

    @property
    def state_dir(self) -> Path | None:
        """None for a unit that runs on its own."""
        return self._environment.state_dir

    @property
    def supervised(self) -> bool:
        return self._environment.supervised

    # ---- orders of the operator ----

    @property
    def draining(self) -> bool:
        """True if the main loop should finish its work, take nothing new, and return."""
        return self._flags.draining

    @property
    def stop_requested(self) -> bool:
        """True if the unit drains and the process will be killed soon: save what can be saved."""
        return self._flags.stopping

    @property
    def paused(self) -> bool:
        return self._flags.paused

    def park_while_paused(self) -> None:
        """Block while the unit is paused and not draining. Call it where the loop would take new work."""
        if self.paused and not self.draining:
            with self.phase("parked", at_most_s=None):
                self._flags.wait(_not_parked, None)
            self._state.touch()

    async def park_while_paused_async(self) -> None:
        """Like `park_while_paused`, for a task."""
        if self.paused and not self.draining:
            with self.phase("parked", at_most_s=None):
                await self._flags.wait_async(_not_parked, None)
            self._state.touch()

    def sleep(self, seconds: float) -> bool:
        """Sleep until the time is over or a drain begins; returns False if a drain began."""
        return not self._flags.wait(_draining, seconds)

    async def sleep_async(self, seconds: float) -> bool:
        """Like `sleep`, for a task."""
        return not await self._flags.wait_async(_draining, seconds)

    def on_drain(self, callback: Callable[[], object]) -> None:
        """Register a callback for the start of a drain. It runs on the main loop if that is an asyncio loop, else in a
        thread.
        """
        self._flags.on_drain(functools.partial(self._parts.call_back, callback))

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Register a callback that gets the name of every incarnation of the run that has ended (`web-0.7`), planned or
        not.

        The call comes soon after the end, or never. Work that must not miss an end also needs a lease.
        """
        self._flags.on_death(lambda name: self._parts.call_back(functools.partial(callback, name)))
        self._parts.wake()

    def extend_stop(self, seconds: float) -> None:
        """Request this much more time, counted from now, for a running drain or stop."""
        if self._parts.connection is not None:
            self._parts.connection.extend(seconds)
        self._state.write(extend_stop_s=seconds)

    # ---- reports ----

    def ready(self) -> None:
        """Report that the unit is ready to work."""
        if not gc.get_freeze_count():
            # All that was imported until now stays. Collecting it again and again would cost a unit that serves many
            # short calls 5 % of its time.
            gc.collect()
            gc.freeze()
        if (trace := trace_context.of_process()) is not None:
            # The operation that started it has what it wanted.
            trace_context.set_of_process(None)
            name, began_s = f"start {self._environment.name}", self._created_at
            spans.record(name, trace.child(), parent=trace.span_id, began_s=began_s, ended_s=time.time())
        self._state.write(ready=True)
        if self._parts.connection is not None:
            self._parts.connection.report_soon()

    def status(self, sentence: str) -> None:
        """Set the sentence that people see about this unit."""
        self._state.write(status=sentence)

    def problem(self, of: str, sentence: str) -> None:
        """Report what keeps the unit from its work: `unit.problem("tool server search", "it exited with 1")`.

        It raises an alert at once and degrades the run, until the same thing is reported with an empty sentence.
        """
        self._state.problem(of, sentence)

    def incomplete(self, sentence: str) -> None:
        """Report what the unit does not do yet although it is ready; `agentrl up` waits until this is empty."""
        if self._state.incomplete != sentence:
            self._state.write(incomplete=sentence)

    def parts(self, parts: Sequence[UnitPart]) -> None:
        """Report the parts that this unit keeps alive. A death of one becomes an incident."""
        self._state.write(parts=tuple(parts))

    def tick(self, count: int = 1) -> None:
        """Report progress. It restarts the deadlines of the open phases."""
        self._state.tick(count)

    def phase(self, name: str, *, at_most_s: float | None) -> AbstractContextManager[None]:
        """Announce a phase: `with unit.phase("step", at_most_s=900):`. Without a tick for that long the phase is late.

        Use a plain `with` in async code too. None sets no deadline: then only silence counts.
        """
        connection = self._parts.connection
        announce = functools.partial(connection.announce, at_most_s) if connection is not None else _nothing
        return self._state.phase(name, at_most_s, announce=announce)

    def wait(self, what: str, *, on: str = "", at_most_s: float) -> AbstractContextManager[None]:
        """Report a wait, which `agentrl why` shows: `with unit.wait("batch", on="sampler-0", at_most_s=60):`.

        `on` is the unit that it waits for, if there is one. This only reports: the body enforces its own deadline.
        """
        return self._state.wait(what, on=on, at_most_s=at_most_s)

    def publish_waits(self, waits: Iterable[Wait]) -> None:
        """Replace the waits of others that this unit reports (`Wait.who` names who waits)."""
        self._state.publish_waits(waits)

    def metric(self, name: str, value: float) -> None:
        """Set the value of a metric. The newest values are sent at most once a second."""
        self._state.metrics({name: value})

    def metrics(self, values: Mapping[str, float]) -> None:
        """Set several metrics, which are sent together."""
        self._state.metrics(values)

    @property
    def weights(self) -> int | None:
        """Return the version of the weights in use."""
        return self._state.weights

    @weights.setter
    def weights(self, version: int) -> None:
        self._state.write(weights=version)

    @property
    def serving(self) -> str:
        """Return the state of the weights, such as `loading(v3→v4)`."""
        return self._state.serving

    @serving.setter
    def serving(self, state: str) -> None:
        self._state.write(serving=state)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Return the knobs that are declared until now."""
        return self._knobs.declarations

    def knob(
        self,
        name: str,
        default: T,
        *,
        boundary: Boundary = "now",
        help: str = "",
        unit: str = "",
        minimum: float | None = None,
        maximum: float | None = None,
        choices: tuple[str, ...] = (),
        scientific: bool = False,
        preview: Callable[[T], Preview | str] | None = None,
        on_change: Callable[[T], object] | None = None,
    ) -> LiveKnob[T]:
        """Declare a knob. It starts with the value that an operator set, else with `default`.

        `boundary` decides when a new value takes effect: `now`, when the loop calls `take()` at its next claim or
        version, or in the next incarnation. `help` to `scientific` are shown to people, and values are checked against
        them before they arrive here. `on_change` is called when a value takes effect; `preview` describes what a value
        would do.
        """
        declaration = Knob(
            name=name,
            kind="choice" if choices else type(default).__name__,
            default=default,
            help=help,
            unit=unit,
            minimum=minimum,
            maximum=maximum,
            choices=choices,
            boundary=boundary,
            scientific=scientific,
        )
        return self.declare(declaration, preview=preview, on_change=on_change)

    def declare(
        self,
        declaration: Knob,
        *,
        preview: Callable[[T], Preview | str] | None = None,
        on_change: Callable[[T], object] | None = None,
    ) -> LiveKnob[T]:
        """Declare a knob from an existing declaration, such as that of a field of the configuration."""
        parts = self._parts
        call = None if on_change is None else lambda value: parts.call_back(functools.partial(on_change, value))
        return self._knobs.declare(declaration, preview=preview, on_change=call)

    def answer(self, handler: Handler) -> None:
        """Serve the commands that the table of commands sends to this group: `async def handler(question) -> result`.

        The main loop runs a few handlers at once, each with a deadline. A handler raises an AgentrlError to refuse. It
        executes a change once per `question.id`, and changes nothing on a dry run.
        """
        self._parts.commands.offer(handler)


def _nothing() -> None:
    pass


def _draining(flags: ControlFlags) -> bool:
    return flags.draining


def _not_parked(flags: ControlFlags) -> bool:
    return flags.draining or not flags.paused


def _guarded(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - the unit's own code; a failure must not end the loop that called it
        traceback.print_exc(file=sys.stderr)
