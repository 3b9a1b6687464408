"""From a main loop to a process that ends well.

Invariants: whatever ends the main loop becomes an exit code and a Bye; nothing of it is swallowed, the traceback is in
the log; faulthandler answers SIGUSR2 from the first moment, so that a stuck unit can be asked where it stands.
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
from agentrl.unit.coordinator_protocol import CoordinatorProtocol
from agentrl.unit.signals import EndSignals
from agentrl.unit.socket_thread import SocketThread
from agentrl.unit.unit import Unit
from agentrl.unit.unit_environment import UnitEnvironment, read_environment

TERM_DEADLINE_S = 10.0
FIRST_ANSWER_WITHIN_S = 3.0
"""How long the start waits for the coordinator, for knobs and orders. It may be away: the unit then begins without."""
LEAVE_WITHIN_S = 3.0
LOOP_TICK_S = 0.25

Main = Callable[[Unit], None]
AsyncMain = Callable[[Unit], Awaitable[None]]


def run_unit(main: Main | AsyncMain, *, term_deadline_s: float = TERM_DEADLINE_S) -> NoReturn:
    """Run a main loop, plain or `async def`, as a unit, and exit with the code that its end deserves.

    After SIGTERM it has `term_deadline_s` to return, more if it asks by `unit.extend_stop`.
    """
    if inspect.iscoroutinefunction(main):
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(_run_in_own_loop(main, term_deadline_s))
    else:
        code = _run_blocking(cast(Main, main), term_deadline_s)
        _bound_the_exit(code)
    sys.exit(code)


async def arun_unit(main: AsyncMain, *, term_deadline_s: float = TERM_DEADLINE_S) -> int:
    """Like `run_unit`, for a program that has a loop already; returns the exit code."""
    try:
        life = _Life(term_deadline_s)
    except ConfigError as wrong:
        return _say_wrong(wrong)
    with life:
        await asyncio.wait([asyncio.wrap_future(life.speaker.first_answer)], timeout=FIRST_ANSWER_WITHIN_S)
        life.unit._loop = life.unit._answers.loop = asyncio.get_running_loop()
        with _turning(life.unit):
            try:
                await main(life.unit)
            except BaseException as error:  # noqa: BLE001 - every end becomes an exit code, with the traceback logged
                life.ended_by(error)
    return life.code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where the extra `fast` is installed: the same messages for half of the processor time."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run_in_own_loop(main: AsyncMain, term_deadline_s: float) -> int:
    code = await arun_unit(main, term_deadline_s=term_deadline_s)
    _bound_the_exit(code)  # Before asyncio waits for the tasks and threads that are left.
    return code


def _run_blocking(main: Main, term_deadline_s: float) -> int:
    try:
        life = _Life(term_deadline_s)
    except ConfigError as wrong:
        return _say_wrong(wrong)
    with life:
        concurrent.futures.wait([life.speaker.first_answer], FIRST_ANSWER_WITHIN_S)
        try:
            main(life.unit)
        except BaseException as error:  # noqa: BLE001 - every end becomes an exit code, with the traceback logged
            life.ended_by(error)
    return life.code


class _Life:
    """Everything around the main loop, from the first moment to the last word."""

    def __init__(self, term_deadline_s: float) -> None:
        environment = read_environment(os.environ, program=Path(sys.argv[0]).stem or "unit")
        self.code = 0
        self.reason = ""
        self.unit = unit = Unit(environment)
        self._environment = environment
        self._requests = EndSignals(interrupt_ends=not environment.supervised)
        self._stacks: TextIO | None = None
        self._conversation = CoordinatorProtocol(
            environment, unit._account, unit._orders, unit._knobs, now=time.monotonic(), say=self._say
        )
        self.speaker = SocketThread(
            environment,
            self._conversation,
            unit._orders,
            unit._knobs,
            unit._answers,
            self._requests,
            term_deadline_s=term_deadline_s,
            say=self._say,
        )

    def __enter__(self) -> _Life:
        self._requests.install()
        if not self._environment.supervised:
            self._say("no coordinator in the environment; running on its own")
        self._stacks = _listen_for_stack_requests(self._environment)
        unit = self.unit
        if self._environment.supervised:
            unit._wake = self.speaker.wake
            unit._report_soon = self.speaker.report_soon
            unit._announce = self.speaker.announce
        unit._extend = self.speaker.extend
        self.speaker.start()
        return self

    def ended_by(self, error: BaseException) -> None:
        """Find the exit code for what ended the main loop; log what is not a plain wish to exit."""
        self.code, self.reason = _verdict(error, draining=self.unit.draining)
        if isinstance(error, ConfigError):
            print(error, file=sys.stderr, flush=True)
        elif self.code and not isinstance(error, SystemExit):
            traceback.print_exception(error, file=sys.stderr)
            sys.stderr.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.unit._answers.close()
        if self.speaker.given_up:
            self.code = int(ExitCode.REFUSED)
        # A main loop that simply returns has said last how it ended.
        self.speaker.finish(self.code, self.reason or ("" if self.code else self.unit._account.status))
        self._requests.restore()
        if self._stacks is not None:
            # The file stays to be found, and without a handler the next question would kill what is about to end.
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
            return int(error.exit_code), str(error)  # Nobody starts it again, so its end says the cure as well.
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
    """SIGUSR2 writes the stacks of all threads to a file of this incarnation, SIGABRT to the log before it kills.

    Whoever finds the file may send the signal, which kills a process without a handler: so that comes first.
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
def _turning(unit: Unit) -> Iterator[None]:
    """While it lasts, the account knows when the loop last turned."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def turn() -> None:
        nonlocal timer
        unit._account.loop_turned = time.monotonic()
        timer = loop.call_later(LOOP_TICK_S, turn)

    turn()
    try:
        yield
    finally:
        timer.cancel()
        unit._account.loop_turned = None


def _bound_the_exit(code: int) -> None:
    """Threads and tasks that the program left behind cannot hold the process for long."""

    def insist() -> None:
        names = ", ".join(thread.name for thread in threading.enumerate() if not thread.daemon)
        print(f"what does not end is left behind (threads: {names})", file=sys.stderr, flush=True)
        os._exit(code)

    last = threading.Timer(LEAVE_WITHIN_S, insist)
    last.daemon = True
    last.start()
