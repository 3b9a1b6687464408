"""One console for one page: a process of its own, spoken with in Textual's protocol for browsers.

Invariants: it ends with its page, within `GRACE_S`, whatever it is doing, and with its server, however that ends; what
it says before it draws reaches the page as text, so a fault is read where it is looked for.
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
"""What the driver says when it begins to draw."""
GRACE_S = 5.0
LONGEST = 64 << 20
MOST_TOLD = 8192
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

    async def drawn(self) -> AsyncIterator[bytes]:
        """What goes to the screen, until it ends by itself."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        said = asyncio.create_task(_last(self._process.stderr), name="what a console says")
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
                told = await said
                yield told.decode(errors="replace").replace("\n", "\r\n").encode()
        finally:
            said.cancel()

    async def _packet(self) -> tuple[bytes, bytes] | None:
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readexactly(5)
            length = int.from_bytes(head[1:], "big")
            return (head[:1], await self._process.stdout.readexactly(length)) if length <= LONGEST else None
        except asyncio.IncompleteReadError:
            return None

    async def typed(self, text: str) -> None:
        # Half of a pair of signs is no text in UTF-8, and a page may send it.
        await self._send(b"D", text.encode(errors="replace"))

    async def told(self, **what: str | int) -> None:
        """Of the page: its size, whether it is looked at."""
        await self._send(b"M", json.dumps(what).encode())

    async def _send(self, kind: bytes, body: bytes) -> None:
        """Raises TimeoutError where it does not read within `GRACE_S`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(kind + len(body).to_bytes(4, "big") + body)
            async with asyncio.timeout(GRACE_S):
                await self._process.stdin.drain()
        except TimeoutError:
            raise
        except (OSError, RuntimeError):
            # It may have ended; whoever reads what it draws sees that.
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
    """Read all of it, so that nobody waits for room; keep the end."""
    kept = b""
    while piece := await stream.read(4096):
        kept = (kept + piece)[-MOST_TOLD:]
    return kept


def end_with_parent() -> None:
    """Said by a console of a page: a server that is killed cannot end it."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
