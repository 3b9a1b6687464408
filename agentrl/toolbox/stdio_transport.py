"""MCP over the pipes of a process that the toolbox starts, owns and ends.

Invariants:
- When the transport ends, the process and its whole group are gone.
- An answer that is too long fails its call and not the connection; output of a server never blocks the event loop.
- Stderr of the process goes to the log of the toolbox; its last lines are kept to explain its death.

The SDK's own transport scans a long line again for each piece of it, and does not report how a process ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import anyio
import mcp_types as types
import psutil
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from agentrl import process_start
from agentrl.errors import AgentrlError
from agentrl.sandboxes.launch_environment import Launch
from agentrl.sandboxes.start_advice import advice_for
from agentrl.toolbox import bounded_lines
from agentrl.toolbox.bounded_lines import HEAD_BYTES, TooLong, lines
from agentrl.toolbox.half_characters import in_whole_characters

log = logging.getLogger("toolbox")
TOO_LONG = -32090
"""Error code for an answer that is too long."""
CLOSE_WITHIN_S = 2.0
"""How long a process may take to end after its input ended, and again after SIGTERM."""
REMOVE_WITHIN_S = 10.0
LAST_WORDS_WITHIN_S = 0.5
BUSY_SHARE = 0.05
"""Share of a core that counts as computing, also on a busy machine."""
_KILLED = 128
_BUFFER_BYTES = 1 << 16
_STARTS = (b"{", b"[")
"""The first byte of a message."""
_WRITTEN_AT_ONCE = 64
"""Messages."""
_LAST_LINES = 20
_LINE_CHARS = 500
_LINES_PER_S = 50
_SHOWN_BYTES = 200
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception)\b\s*:?")
"""The line of a traceback that names the error."""
_ID = re.compile(rb'"id"\s*:\s*(\d+|"(?:[^"\\]|\\.){1,128}")')

Inbox = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class Activity(NamedTuple):
    """Signs of life of a server since its start."""

    written: int = 0
    """Lines of output."""
    cpu_s: float = 0.0

    def since(self, before: Activity, seconds: float) -> bool:
        """Whether the server wrote something, or computed for a part of this time."""
        return self.written > before.written or self.cpu_s - before.cpu_s > BUSY_SHARE * seconds


class CannotStartError(AgentrlError):
    """The program of a server could not be started."""


class ServerProcess:
    """One process of a server; `connected` is its transport, used once."""

    def __init__(self, name: str, launch: Launch) -> None:
        self._name = name
        self._launch = launch
        self._process: Process | None = None
        self._code: int | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._written = 0
        self._killed_for_memory = False
        self._logged_in, self._logged = 0, 0
        self._dead = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when it has closed its output, or died."""
        self.on_line: Callable[[str], None] = lambda text: None
        """Called with each line that goes to the log."""

    @property
    def launch(self) -> Launch:
        return self._launch

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def activity(self) -> Activity:
        return Activity(self._written, _cpu_s(self._process.pid) if self._process and self._code is None else 0.0)

    @property
    def story(self) -> str:
        """How it ended, the line that names the error, and its last lines."""
        code = self._code
        if code is None:
            how = "it closed its output" if self.ended.is_set() else "it runs"
        else:
            how = f"it was ended by {_signal_name(-code)}" if code < 0 else f"it exited with {code}"
        if self._killed_for_memory:
            how = f"{how}, because it used more than tools.{self._name}.sandbox.memory"
        if not self._last_lines:
            return how
        # First in the text, because the end may be cut when it is shown.
        error = next((line for line in reversed(self._last_lines) if _ERROR.match(line)), "")
        lines = "; ".join(self._last_lines)
        return f"{how}{f': {error}' if error else ''}; its last lines: {lines}"

    @property
    def advice(self) -> str:
        """What may help if it does not start; empty if nothing is known."""
        found = advice_for(f"tools.{self._name}", self._launch, self._last_lines)
        return f" {found}" if found else ""

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Streams]:
        """Start the process and give its two streams. Raises CannotStartError."""
        process = self._process = await self._start()
        inbox, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, outbox = anyio.create_memory_object_stream[SessionMessage](0)
        pumps = (
            asyncio.create_task(self._read(process, inbox), name=f"stdout of {self._name}"),
            asyncio.create_task(self._write(process, outbox), name=f"stdin of {self._name}"),
            asyncio.create_task(self._log(process), name=f"stderr of {self._name}"),
            asyncio.create_task(self._watch(process, inbox), name=f"death of {self._name}"),
        )
        try:
            yield incoming, outgoing
        finally:
            try:
                await self._end(process)
            finally:
                for pump in pumps:
                    pump.cancel()
                for stream in (inbox, incoming, outgoing, outbox):
                    stream.close()
                # A descendant that left the group may hold a pipe open, and no public method closes this end.
                process._transport.close()  # type: ignore[attr-defined]

    async def _died(self) -> bool:
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._dead.wait()
        except TimeoutError:
            return False
        return True

    async def _start(self) -> Process:
        try:
            return await process_start.started(
                self._launch, limit=_BUFFER_BYTES, remove=lambda: self._remove_sandbox([])
            )
        except (OSError, ValueError) as broken:
            why = broken.strerror if isinstance(broken, OSError) else str(broken)
            raise CannotStartError(f"{self._launch.command[0]} cannot be started: {why}.") from broken

    async def _read(self, process: Process, inbox: Inbox) -> None:
        assert process.stdout is not None
        try:
            async for line in lines(process.stdout):
                self._written += 1
                message = self._message(line)
                if message is not None:
                    await inbox.send(message)
            await self._until_dead()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # the session is gone
        finally:
            self._finish(inbox)

    async def _watch(self, process: Process, inbox: Inbox) -> None:
        """Notice the death. asyncio's `wait` also waits for the pipes, which a child of the process may hold open."""
        self._code = await _death_of(process)
        if self._launch.sandbox != "none" and self._code is not None and self._code > _KILLED:
            self._code = _KILLED - self._code  # bubblewrap and container engines report a signal like a shell
        self._killed_for_memory = self._launch.cgroup is not None and self._launch.cgroup.exceeded_memory
        self._dead.set()
        # First read what it wrote before it died.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_WITHIN_S):
                await self.ended.wait()
        self._finish(inbox)

    def _finish(self, inbox: Inbox) -> None:
        self.ended.set()
        inbox.close()

    async def _until_dead(self) -> None:
        """A process that closed its output usually dies soon, and its exit status explains more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_WITHIN_S):
                await self._dead.wait()

    def _message(self, line: bytes | TooLong) -> SessionMessage | None:
        if isinstance(line, TooLong):
            return self._unread(
                line.head, f"has {line.length} bytes; at most {bounded_lines.MOST_BYTES} are read", TOO_LONG
            )
        start = line.lstrip()[:1]
        if not start:
            return None
        if start not in _STARTS:
            return self._unread(line[:HEAD_BYTES], "is no message", types.PARSE_ERROR)
        try:
            return _parsed(line)
        except ValueError:
            pass
        try:
            return _parsed(in_whole_characters(line))
        except ValueError:
            return self._unread(line[:HEAD_BYTES], "is no message", types.PARSE_ERROR)

    def _unread(self, head: bytes, why: str, code: int) -> SessionMessage | None:
        """An error for the call of an unreadable answer; None if its id, which comes before the result, is missing."""
        match = _ID.search(head.partition(b'"result"')[0])
        self._log_line(logging.WARNING, f"it wrote what {why}: {head[:_SHOWN_BYTES]!r}")
        if match is None:
            return None
        call = match[1].decode(errors="replace")
        error = types.ErrorData(code=code, message=f"The answer {why}.")
        return SessionMessage(
            types.JSONRPCError(jsonrpc="2.0", id=int(call) if call.isdigit() else call[1:-1], error=error)
        )

    async def _write(self, process: Process, outbox: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert process.stdin is not None
        async for item in outbox:
            # All waiting messages are sent in one write, because waking the server costs more than a message.
            waiting = [item]
            with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream):
                while len(waiting) < _WRITTEN_AT_ONCE:
                    waiting.append(outbox.receive_nowait())
            try:
                process.stdin.write(b"".join(map(_line_of, waiting)))
                await process.stdin.drain()
            except OSError:
                return  # the reader handles the end

    async def _log(self, process: Process) -> None:
        assert process.stderr is not None
        async for line in lines(process.stderr, whole=HEAD_BYTES, shorten=False):
            self._written += 1
            data = line.head if isinstance(line, TooLong) else line
            text = data.decode(errors="replace").strip()[:_LINE_CHARS]
            if text:
                self._last_lines.append(text)
                self._log_line(logging.INFO, text)

    def _log_line(self, level: int, text: str) -> None:
        """Write a line to the log, unless there were too many in this second."""
        second = int(time.monotonic())
        if second != self._logged_in:
            if self._logged > _LINES_PER_S:
                log.info("%s: (%d more lines)", self._name, self._logged - _LINES_PER_S)
            self._logged_in, self._logged = second, 0
        self._logged += 1
        if self._logged <= _LINES_PER_S:
            log.log(level, "%s: %s", self._name, text)
            self.on_line(text)

    async def _end(self, process: Process) -> None:
        """End the input, then SIGTERM, then SIGKILL; the group and the sandbox are killed in any case."""
        assert process.stdin is not None
        process.stdin.close()
        inside: list[psutil.Process] = []
        try:
            if not await self._died():
                inside = _descendants(process.pid) if self._launch.sandbox == "process" else []
                if inside:
                    _terminate(inside)
                else:
                    process_start.signal_group(process.pid, signal.SIGTERM)
                await self._died()
        finally:
            process_start.signal_group(process.pid, signal.SIGKILL)
            if not await self._died():
                log.error("%s (pid %d) survives SIGKILL", self._name, process.pid)
            await _until_reaped(process)
            await self._remove_sandbox(inside)

    async def _remove_sandbox(self, inside: list[psutil.Process]) -> None:
        """Wait until the kernel has ended the processes inside, and remove what outlives the process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                while any(each.is_running() for each in inside):
                    await asyncio.sleep(0.005)
                if self._launch.cgroup is not None:
                    await self._launch.cgroup.remove()
        if self._launch.removal:
            command = [*self._launch.removal]
            removing = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REMOVE_WITHIN_S):
                    await removing.wait()


def _line_of(item: SessionMessage) -> bytes:
    return item.message.model_dump_json(by_alias=True, exclude_unset=True).encode(errors="replace") + b"\n"


def _parsed(line: bytes) -> SessionMessage:
    return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))


def _cpu_s(pid: int) -> float:
    """The processor time of the process and its descendants, because `uvx` and `npx` start the server as a child."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = each.cpu_times()
                seconds += times.user + times.system
    return seconds


async def _death_of(process: Process) -> int | None:
    """Wait until the process is dead; returns its status, or None if asyncio already took it."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        descriptor = None
    if descriptor is not None:
        died = asyncio.Event()
        loop.add_reader(descriptor, died.set)
        try:
            await died.wait()
            # asyncio takes the status in a thread, which may be late on a busy machine.
            with contextlib.suppress(ChildProcessError):
                found = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT | os.WNOHANG)  # noqa: ASYNC222
                if found is not None:
                    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    await _until_reaped(process)
    return process.returncode


async def _until_reaped(process: Process) -> None:
    """Wait until asyncio has the status of a dead process, which it takes in a thread."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_WITHIN_S):
            while process.returncode is None:
                await asyncio.sleep(0.005)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _terminate(inside: list[psutil.Process]) -> None:
    """SIGTERM all processes in a sandbox except its first, whose end would kill the others."""
    for each in inside[1:]:
        with contextlib.suppress(psutil.Error):
            each.terminate()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
