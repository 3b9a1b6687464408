"""The process that plays an environment of another package, beside a sampler.

Invariants:
- It starts at the first request, and starts again at the first request after it died. Requests that were open when it
  died fail. A start continues if the request that began it is cancelled.
- However it ends, each request gets an answer or an error. A process whose event loop is blocked is ended, and so is
  one whose threads are held by requests for which nothing waits any more.
- What it prints goes to the log of the sampler and nowhere else. A line on its answer channel that is no valid answer
  ends it.
- What it says of a failure becomes one line of bounded length.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import signal
import time
from asyncio.subprocess import Process
from typing import Any, Protocol

from agentrl import process_start
from agentrl.adapters.player import LONGEST_ERROR, LONGEST_LINE, PlayerError
from agentrl.toolservers.shortening import one_line

log = logging.getLogger("environment")
START_WITHIN_S = 300.0
ENDS_WITHIN_S = 5.0
OUTPUT_WITHIN_S = 1.0
"""A process that the package started may hold the output open for longer than the program lives."""
LOOK_EVERY_S = 0.1
LONGEST_LOGGED = 16_000
"""The most bytes of a logged line; a longer line is logged as several."""
LOGGED_PER_S = 100
"""The most lines that are logged in a second; further ones are only counted."""
STANDS_STILL_S = 20.0
"""A process with open requests is ended after this time without a sign of life."""
LEFT_AT_MOST_S = 60.0
MOST_LEFT = 16
"""So many requests without an answer, for which nothing has waited for LEFT_AT_MOST_S, end the process: each may hold
one of its threads for ever."""


class Start(process_start.Start, Protocol):
    """One start of a process, perhaps in a sandbox."""

    async def ended(self, code: int) -> str:
        """Removes what the process left behind. Returns a sentence on how it ended."""
        ...


class Program(Protocol):
    """How a process is started and how its failures are described."""

    @property
    def source(self) -> object: ...
    @property
    def python(self) -> str: ...
    @property
    def command(self) -> list[str]:
        """The command that starts it without a sandbox."""
        ...

    def start(self) -> Start: ...
    def error(self, what: str) -> PlayerError: ...


class PlayerProcess:
    """A process that plays episodes. An instance belongs to one event loop."""

    def __init__(self, player: Program) -> None:
        self._player = player
        self._process: Process | None = None
        self._readers: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ready = False
        """Whether it has imported the package."""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._asked: set[int] = set()
        """Requests without an answer, including those for which nothing waits any more."""
        self._left: dict[int, float] = {}
        """Of these, the ones for which nothing waits any more, with the time since when."""
        self._last_line = ""
        """The last line that the package printed."""
        self._logged_in, self._logged = 0, 0
        self._fault = ""
        """Why it has ended or is being ended; empty while it lives."""

    async def ask(self, do: str, **fields: Any) -> Any:
        """Sends a request, starting the process if necessary, and returns its answer. Raises PlayerError."""
        if not self._lives:
            await self._start_once()
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._write(number, do, fields)
            assert self._process is not None
            assert self._process.stdin is not None
            with contextlib.suppress(ConnectionError):  # The reader reports that the process ended.
                await self._process.stdin.drain()
            return await answer
        finally:
            del self._waiting[number]
            if number in self._asked:
                self._left[number] = time.monotonic()

    def send(self, do: str, **fields: Any) -> None:
        """Sends a request whose answer is not needed. Does nothing if the process has ended."""
        if self._readers is not None and not self._readers.done():
            self._write(next(self._numbers), do, fields)

    def _write(self, number: int, do: str, fields: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._asked.add(number)
        self._process.stdin.write(json.dumps({"id": number, "do": do, **fields}, default=str).encode() + b"\n")

    @property
    def _lives(self) -> bool:
        return self._ready and self._readers is not None and not self._readers.done()

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._close()

    async def _close(self) -> None:
        process, readers = self._process, self._readers
        if process is None or readers is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                await _exit_code(process)
        except TimeoutError:
            _kill(process)
        await readers
        self._process = self._readers = None

    async def _start_once(self) -> None:
        """One start for all requests that need it."""
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(), name=f"start of {self._player.source}")
            self._starting.add_done_callback(lambda start: start.cancelled() or start.exception())
        await asyncio.shield(self._starting)
        if not self._lives:
            raise self._error(self._fault)

    async def _start(self) -> None:
        await self._close()
        start = self._player.start()
        self._ready, self._last_line, self._fault = False, "", ""
        try:
            self._process = await process_start.started(
                start, limit=LONGEST_LINE, remove=lambda: start.ended(-signal.SIGKILL)
            )
        except (OSError, ValueError) as wrong:
            why = wrong.strerror if isinstance(wrong, OSError) else wrong
            raise self._error(f"{self._player.python} does not start: {why}") from None
        self._asked, self._left = {0}, {}
        begun = self._waiting[0] = asyncio.get_running_loop().create_future()
        self._readers = asyncio.create_task(self._read(self._process, start), name=f"environment {self._player.source}")
        try:
            async with asyncio.timeout(START_WITHIN_S):
                await begun
        except TimeoutError:
            _kill(self._process)
            raise self._error(f"its program did not start within {START_WITHIN_S:g} s") from None
        finally:
            del self._waiting[0]
        self._ready = True

    def _error(self, what: str) -> PlayerError:
        return self._player.error(one_line(what, LONGEST_ERROR))

    async def _read(self, process: Process, start: Start) -> None:
        """Reads the output of the process until it ends; then fails the requests that still wait for an answer."""
        assert process.stdout is not None
        assert process.stderr is not None
        of = self._player.source
        readers = [
            asyncio.create_task(self._take_all(process, process.stdout), name=f"answers of {of}"),
            asyncio.create_task(self._log(process.stderr), name=f"output of {of}"),
        ]
        watch = asyncio.create_task(self._watch(process), name=f"life of {of}")
        code = await _exit_code(process)
        watch.cancel()
        await asyncio.wait(readers, timeout=OUTPUT_WITHIN_S)
        for reader in readers:
            reader.cancel()
        how = await start.ended(code)
        self._fault = self._fault or (f"{how}: {self._last_line}" if self._last_line else how)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._error(self._fault))

    async def _watch(self, process: Process) -> None:
        """Ends the process if it has open requests and its event loop is blocked, or if its threads are held."""
        while True:
            await asyncio.sleep(STANDS_STILL_S / 2)
            late = time.monotonic() - LEFT_AT_MOST_S
            if (held := sum(since < late for since in self._left.values())) >= MOST_LEFT:
                what = f"the code of {held} episodes that have ended goes on and holds its threads"
                self._end(process, f"{what}, so its process was ended")
                return
            if not self._ready or not self._waiting:
                continue
            number = next(self._numbers)
            alive = self._waiting[number] = asyncio.get_running_loop().create_future()
            try:
                self._write(number, "alive", {})
                async with asyncio.timeout(STANDS_STILL_S):
                    await alive
            except TimeoutError:
                self._end(process, f"it holds up its own process for {STANDS_STILL_S:g} s, which was ended")
                return
            finally:
                self._waiting.pop(number, None)

    def _end(self, process: Process, fault: str) -> None:
        self._fault = fault
        _kill(process)

    async def _take_all(self, process: Process, answers: asyncio.StreamReader) -> None:
        try:
            while line := await answers.readline():
                self._take(json.loads(line))
            async with asyncio.timeout(ENDS_WITHIN_S):
                await _exit_code(process)
        except TimeoutError:
            self._end(process, "it closed its output, so that it can answer nothing")
        except (ValueError, TypeError, LookupError, RecursionError) as wrong:  # It is no answer, or too long.
            what = f"an answer of its program cannot be read: {one_line(str(wrong), LONGEST_ERROR)}"
            log.error("%s: %s", self._player.source, what)
            self._end(process, what)

    def _take(self, answer: dict[str, Any]) -> None:
        if answer["id"] not in self._asked:
            # A process could keep its sampler busy with answers that no request asked for.
            raise ValueError(f"it answers {answer['id']!r}, which was not asked")
        self._asked.remove(answer["id"])
        self._left.pop(answer["id"], None)
        waiting = self._waiting.get(answer["id"])
        if waiting is None or waiting.done():
            return
        if "error" in answer:
            waiting.set_exception(self._error(str(answer["error"])))
        else:
            waiting.set_result(answer["ok"])

    async def _log(self, output: asyncio.StreamReader) -> None:
        """Logs the output line by line. A carriage return also ends a line: progress bars may never write another line
        end."""
        rest = b""
        while part := await output.read(LONGEST_LOGGED):
            *lines, rest = (rest + part).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > LONGEST_LOGGED:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._log_line(line)
        self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self._last_line = text
            second = int(time.monotonic())
            if second != self._logged_in:
                if self._logged > LOGGED_PER_S:
                    log.info("%s: (%d more lines)", self._player.source, self._logged - LOGGED_PER_S)
                self._logged_in, self._logged = second, 0
            self._logged += 1
            if self._logged <= LOGGED_PER_S:
                log.info("%s: %s", self._player.source, text)


def _kill(process: Process) -> None:
    """Kills the whole process group, which includes a sandbox that is still being made."""
    process_start.signal_group(process.pid, signal.SIGKILL)


async def _exit_code(process: Process) -> int:
    """Polls, because `Process.wait` would also wait for the pipes, which a process that the package started may hold
    open."""
    while process.returncode is None:
        await asyncio.sleep(LOOK_EVERY_S)
    return process.returncode
