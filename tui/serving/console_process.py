"""Runs the console process of one browser page, connected through Textual's protocol for browsers.

Invariants:
- The process ends within `GRACE_S` after its page, in any state.
- The process ends with its server, even if the server is killed.
- Output before the first picture reaches the page as text, so a failed start can be read in the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence

READY = b"__GANGLION__\n"
"""Textual's driver writes it before the first packet."""
GRACE_S = 5.0
MOST_PACKET_BYTES = 64 << 20
MOST_ERROR_BYTES = 8192
PR_SET_PDEATHSIG = 1


class ConsoleProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, options: Sequence[str], width: int, height: int) -> ConsoleProcess:
        environ = {
            **os.environ,
            "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
            "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "COLUMNS": str(width),
            "ROWS": str(height),
            "TERM": "xterm-256color",
        }
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "tui", "--in-browser", *options)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def output(self) -> AsyncIterator[bytes]:
        """The output for the page, until the process ends."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        errors = asyncio.create_task(_last(self._process.stderr), name="errors of a console")
        try:
            begun = False
            while not begun and (line := await self._process.stdout.readline()):
                begun = line == READY
            while begun and (packet := await self._packet()) is not None:
                kind, body = packet
                if kind == b"D":
                    yield body
                elif kind == b"M" and json.loads(body).get("type") == "exit":
                    return
            if not begun:
                yield (await errors).decode(errors="replace").replace("\n", "\r\n").encode()
        finally:
            errors.cancel()

    async def _packet(self) -> tuple[bytes, bytes] | None:
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readexactly(5)
            length = int.from_bytes(head[1:], "big")
            return (head[:1], await self._process.stdout.readexactly(length)) if length <= MOST_PACKET_BYTES else None
        except asyncio.IncompleteReadError:
            return None

    async def send_keys(self, text: str) -> None:
        # A page may send half of a surrogate pair, which UTF-8 cannot encode.
        await self._send(b"D", text.encode(errors="replace"))

    async def send_event(self, **event: str | int) -> None:
        """Report the size of the page, or its focus."""
        await self._send(b"M", json.dumps(event).encode())

    async def _send(self, kind: bytes, body: bytes) -> None:
        """Raises TimeoutError if the process does not read within `GRACE_S`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(kind + len(body).to_bytes(4, "big") + body)
            async with asyncio.timeout(GRACE_S):
                await self._process.stdin.drain()
        except TimeoutError:
            raise
        except (OSError, RuntimeError):
            # The process ended; the reader of its output notices that.
            return

    async def end(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(GRACE_S):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()


async def _last(stream: asyncio.StreamReader) -> bytes:
    """Read all output, so that the process never blocks; return its last part."""
    kept = b""
    while piece := await stream.read(4096):
        kept = (kept + piece)[-MOST_ERROR_BYTES:]
    return kept


def end_with_parent() -> None:
    """Called by the console of a page: have the kernel end it with its server, which may be killed."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
