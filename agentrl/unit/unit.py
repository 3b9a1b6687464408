"""What a main loop holds in its hand: the unit it is.

Invariants: every method may be called from any thread or task; none of them waits for the coordinator, except that a
long phase is announced before its body runs (a fraction of a second at most); without a coordinator all of them work.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from agentrl.protocol.knob import Boundary, Knob
from agentrl.protocol.messages import Wait
from agentrl.unit.control_flags import ControlFlags
from agentrl.unit.reported_state import ReportedState
from agentrl.unit.served_commands import Handler, ServedCommands
from agentrl.unit.unit_environment import UnitEnvironment
from agentrl.unit.unit_knobs import KnobSet, LiveKnob, Preview, T


class Unit:
    """Made by `run_unit` and `arun_unit`, and given to the main loop."""

    def __init__(self, environment: UnitEnvironment) -> None:
        self._environment = environment
        self._orders = ControlFlags()
        self._account = ReportedState(on_change=self._changed)
        self._knobs = KnobSet(self._account.changed)
        self._answers = ServedCommands()
        self._loop: asyncio.AbstractEventLoop | None = None
        # Set by the runner once the thread of the socket is there.
        self._wake: Callable[[], None] = _nothing
        self._report_soon: Callable[[], None] = _nothing
        self._announce: Callable[[float | None], None] = _nothing
        self._extend: Callable[[float], None] = _nothing

    # ---- who it is ----

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

    # ---- what it was told ----

    @property
    def draining(self) -> bool:
        """Finish what is under way, take nothing new, return from the main loop."""
        return self._orders.draining

    @property
    def stop_requested(self) -> bool:
        """As draining, and the process will be killed soon: save what can be saved."""
        return self._orders.stopping

    @property
    def paused(self) -> bool:
        return self._orders.paused

    def park_while_paused(self) -> None:
        """Block here while the unit is paused; a drain ends it too. Call it where new work would be taken."""
        if self.paused and not self.draining:
            with self.phase("parked", at_most_s=None):
                self._orders.wait(_not_parked, None)
            self._account.touch()

    async def park_while_paused_async(self) -> None:
        """Like `park_while_paused`, for a task."""
        if self.paused and not self.draining:
            with self.phase("parked", at_most_s=None):
                await self._orders.wait_async(_not_parked, None)
            self._account.touch()

    def sleep(self, seconds: float) -> bool:
        """Sleep, but not into a drain: False if one began."""
        return not self._orders.wait(_draining, seconds)

    async def sleep_async(self, seconds: float) -> bool:
        """Like `sleep`, for a task."""
        return not await self._orders.wait_async(_draining, seconds)

    def on_drain(self, callback: Callable[[], object]) -> None:
        """Call back when a drain begins: on the main loop if that is asyncio's, else in a thread of its own."""
        self._orders.on_drain(functools.partial(self._call_back, callback))

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the name of every life of the run that has ended for certain (`web-0.7`), planned or not.

        It comes within a moment of the end, or never: what must not be missed needs a lease besides.
        """
        self._orders.on_death(lambda name: self._call_back(functools.partial(callback, name)))
        self._wake()

    def extend_stop(self, seconds: float) -> None:
        """Ask for this much more time, counted from now, for a drain or stop that is under way."""
        self._extend(seconds)
        self._account.write(extend_stop_s=seconds)

    # ---- what it says ----

    def ready(self) -> None:
        """The unit does what it is for."""
        if not gc.get_freeze_count():
            # What was imported until now stays: to go through all of it again and again costs a unit that serves many
            # short calls a twentieth of its time.
            gc.collect()
            gc.freeze()
        self._account.write(ready=True)
        self._report_soon()

    def status(self, sentence: str) -> None:
        """What a person should read about this unit."""
        self._account.write(status=sentence)

    def tick(self, count: int = 1) -> None:
        """Progress was made; the deadlines of the phases around this line begin anew."""
        self._account.tick(count)

    def phase(self, name: str, *, at_most_s: float | None) -> AbstractContextManager[None]:
        """`with unit.phase("step", at_most_s=900):` the loop may stand that long without a tick.

        In async code too it is a plain `with`. None sets no deadline: then only silence counts.
        """
        return self._account.phase(name, at_most_s, announce=lambda: self._announce(at_most_s))

    def wait(self, what: str, *, on: str = "", at_most_s: float) -> AbstractContextManager[None]:
        """`with unit.wait("batch", on="sampler-0", at_most_s=60):` shown to whoever asks why nothing happens.

        `on` is the unit that is waited for, where there is one. It is a report: the body keeps the time itself.
        """
        return self._account.wait(what, on=on, at_most_s=at_most_s)

    def tell_waits(self, waits: Iterable[Wait]) -> None:
        """Waits of others that this unit knows of (`Wait.who`), in place of those that it told before."""
        self._account.tell_waits(waits)

    def metric(self, name: str, value: float) -> None:
        """The newest value of a metric; sent at most once a second."""
        self._account.metrics({name: value})

    def metrics(self, values: Mapping[str, float]) -> None:
        """The same of several that belong together: whoever sees one of them sees all."""
        self._account.metrics(values)

    @property
    def weights(self) -> int | None:
        """The version of the weights it works with."""
        return self._account.weights

    @weights.setter
    def weights(self, version: int) -> None:
        self._account.write(weights=version)

    @property
    def serving(self) -> str:
        """What it does about versions of the weights, such as `loading(v3→v4)`."""
        return self._account.serving

    @serving.setter
    def serving(self, state: str) -> None:
        self._account.write(serving=state)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Those that were declared up to now."""
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
        """Own a knob. It begins with the value that the run has tuned, else with `default`.

        `boundary` says when a new value comes into force: `now`, or when the loop calls `take()` at its next claim or
        version, or in the next incarnation. Everything up to `scientific` is for people and for the check of values
        before they come here. `on_change` is told of a value that came into force, `preview` is asked
        what a value would do.
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
        """Own a knob that is declared elsewhere, such as at a field of the configuration."""
        call = None if on_change is None else lambda value: self._call_back(functools.partial(on_change, value))
        return self._knobs.declare(declaration, preview=preview, on_change=call)

    def answer(self, handler: Handler) -> None:
        """Serve the commands that the table gives to this unit's group: `async def handler(question) -> result`.

        Questions are served side by side on the loop that runs now, a few at once, each with a deadline. Raise an
        AgentrlError to refuse. Whoever changes something does so once per `question.id`, and nothing on a dry run.
        """
        self._answers.offer(handler)

    # ---- inside ----

    def _changed(self) -> None:
        self._wake()

    def _call_back(self, callback: Callable[[], object]) -> None:
        if self._loop is None:
            threading.Thread(target=_guarded, args=(callback,), name="agentrl-callback", daemon=True).start()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_guarded, callback)


def _nothing(*_: object) -> None:
    pass


def _draining(orders: ControlFlags) -> bool:
    return orders.draining


def _not_parked(orders: ControlFlags) -> bool:
    return orders.draining or not orders.paused


def _guarded(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - the unit's own code; a failure must not end the loop that called it
        traceback.print_exc(file=sys.stderr)
