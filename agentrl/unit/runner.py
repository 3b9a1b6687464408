"""Runs a main loop as the process of a unit: `run_unit` and `arun_unit`.

Invariants:
- Every end of the main loop becomes an exit code and a Bye; a traceback goes to the log.
- faulthandler answers SIGUSR2 from the start, so a unit that is stuck can still write its stacks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import faulthandler
import importlib.util
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TextIO, cast

from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.tracing import trace_context
from agentrl.unit.reported_state import ReportedState
from agentrl.unit.signals import EndSignals
from agentrl.unit.socket_thread import SocketThread
from agentrl.unit.unit import Unit, UnitParts
from agentrl.unit.unit_environment import UnitEnvironment, read_environment

TERM_DEADLINE_S = 10.0
FIRST_ANSWER_WITHIN_S = 3.0
"""How long the start waits for the coordinator, which sends knob values and a pause. Then the unit starts without
them.
"""
LEAVE_WITHIN_S = 3.0
LOOP_TICK_S = 0.25

Main = Callable[[Unit], None]
AsyncMain = Callable[[Unit], Awaitable[None]]


def run_unit(main: Main | AsyncMain, *, term_deadline_s: float = TERM_DEADLINE_S) -> NoReturn:
    """Run a main loop, plain or `async def`, as a unit, and exit with its exit code.

    After SIGTERM it has `term_deadline_s` to return; `unit.extend_stop` gives it more.
    """
    if inspect.iscoroutinefunction(main):
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(_run_in_own_loop(main, term_deadline_s))
    else:
        code = _run_blocking(cast(Main, main), term_deadline_s)
        _bound_the_exit(code)
    sys.exit(code)


async def arun_unit(main: AsyncMain, *, term_deadline_s: float = TERM_DEADLINE_S) -> int:
    """Like `run_unit`, for a program that has a loop already; returns the exit code."""
    try:
        process = _Process(term_deadline_s)
    except ConfigError as wrong:
        return _say_wrong(wrong)
    with process:
        await asyncio.wait([asyncio.wrap_future(process.thread.first_answer)], timeout=FIRST_ANSWER_WITHIN_S)
        process.parts.loop = process.parts.commands.loop = asyncio.get_running_loop()
        with _watched_loop(process.parts.state):
            try:
                await main(process.unit)
            except BaseException as error:  # noqa: BLE001 - every end becomes an exit code, with the traceback logged
                process.ended_by(error)
    return process.code


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's if the extra `fast` is installed: it halves the processor time of messages."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run_in_own_loop(main: AsyncMain, term_deadline_s: float) -> int:
    code = await arun_unit(main, term_deadline_s=term_deadline_s)
    _bound_the_exit(code)  # This comes before asyncio waits for the tasks and threads that are left.
    return code


def _run_blocking(main: Main, term_deadline_s: float) -> int:
    try:
        process = _Process(term_deadline_s)
    except ConfigError as wrong:
        return _say_wrong(wrong)
    with process:
        concurrent.futures.wait([process.thread.first_answer], FIRST_ANSWER_WITHIN_S)
        try:
            main(process.unit)
        except BaseException as error:  # noqa: BLE001 - every end becomes an exit code, with the traceback logged
            process.ended_by(error)
    return process.code


class _Process:
    """Owns everything around the main loop: signals, stacks, the thread of the socket, the exit code."""

    def __init__(self, term_deadline_s: float) -> None:
        environment = read_environment(os.environ, program=Path(sys.argv[0]).stem or "unit")
        trace_context.set_of_process(trace_context.parse(os.environ.get(trace_context.VARIABLE, "")))
        self.code = 0
        self.reason = ""
        self.parts = UnitParts(environment)
        self.unit = Unit(self.parts)
        self._environment = environment
        self._signals = EndSignals(interrupt_ends=not environment.supervised)
        self._stacks: TextIO | None = None
        self.thread = SocketThread(self.parts, self._signals, term_deadline_s=term_deadline_s, say=self._say)

    def __enter__(self) -> _Process:
        self._signals.install()
        if not self._environment.supervised:
            self._say("no coordinator in the environment; running on its own")
        if stimulus := os.environ.get("AGENTRL_STIMULUS"):
            self._say(f"started by {stimulus}")
        self._stacks = _listen_for_stack_requests(self._environment)
        self.parts.connection = self.thread
        self.thread.start()
        return self

    def ended_by(self, error: BaseException) -> None:
        """Set the exit code from the exception that ended the main loop; log it unless it is a plain exit."""
        self.code, self.reason = _verdict(error, draining=self.unit.draining)
        if isinstance(error, ConfigError):
            print(error, file=sys.stderr, flush=True)
        elif self.code and not isinstance(error, SystemExit):
            traceback.print_exception(error, file=sys.stderr)
            sys.stderr.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.parts.commands.close()
        if self.thread.given_up:
            self.code = int(ExitCode.REFUSED)
        # If a main loop returns normally, its last status describes its end.
        self.thread.finish(self.code, self.reason or ("" if self.code else self.parts.state.status))
        self._signals.restore()
        if self._stacks is not None:
            # The file stays. Without a handler the next SIGUSR2 would kill this process while it ends.
            _write_stacks_to(sys.stderr)
            self._stacks.close()

    def _say(self, sentence: str) -> None:
        print(f"{self._environment.name}: {sentence}", file=sys.stderr, flush=True)


def _verdict(error: BaseException, *, draining: bool) -> tuple[int, str]:
    match error:
        case SystemExit(code=None):
            return 0, ""
        case SystemExit(code=int(code)):
            return code, ""
        case SystemExit():
            print(error.code, file=sys.stderr, flush=True)
            return ExitCode.FAILED, str(error.code)
        case asyncio.CancelledError() if draining:
            return 0, ""  # `unit.on_drain(task.cancel)` is a way to end
        case ConfigError():
            # The unit is not restarted, so the reason of its end includes the hint.
            return int(error.exit_code), str(error)
        case AgentrlError():
            return int(error.exit_code), error.message
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED, "interrupted"
        case _:
            return ExitCode.FAILED, f"{type(error).__name__}: {error}"


def _say_wrong(wrong: ConfigError) -> int:
    print(wrong, file=sys.stderr, flush=True)
    return int(wrong.exit_code)


def _listen_for_stack_requests(environment: UnitEnvironment) -> TextIO | None:
    """Make SIGUSR2 write the stacks of all threads to a file of this incarnation, and SIGABRT to the log before it
    kills.

    The handler is installed before the file exists, because others send the signal when they find the file, and without
    a handler it kills.
    """
    faulthandler.enable()
    _write_stacks_to(sys.stderr)
    if not environment.supervised:
        return None
    path = environment.run_dir / "stacks" / f"{environment.name}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
    except OSError as full:
        print(f"stacks go to the log, {path} cannot be written: {full}", file=sys.stderr, flush=True)
        return None
    _write_stacks_to(file)
    return file


def _write_stacks_to(file: TextIO) -> None:
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)


@contextlib.contextmanager
def _watched_loop(state: ReportedState) -> Iterator[None]:
    """Keep `state.loop_turned` up to date, so that a blocked loop is detected."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def turn() -> None:
        nonlocal timer
        state.loop_turned = time.monotonic()
        timer = loop.call_later(LOOP_TICK_S, turn)

    turn()
    try:
        yield
    finally:
        timer.cancel()
        state.loop_turned = None


def _bound_the_exit(code: int) -> None:
    """End the process, even if threads or tasks of the program do not end."""

    def insist() -> None:
        names = ", ".join(thread.name for thread in threading.enumerate() if not thread.daemon)
        print(f"threads that do not end are abandoned: {names}", file=sys.stderr, flush=True)
        os._exit(code)

    last = threading.Timer(LEAVE_WITHIN_S, insist)
    last.daemon = True
    last.start()
