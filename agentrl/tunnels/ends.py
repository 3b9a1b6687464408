"""The connections that a tunnel joins: what comes at one end is written to the other, without a task between them.

A call to another host passes two tunnels in each direction, so what a piece costs here counts four times.

Invariants:
- What comes before an end is joined to another one is kept, at most a buffer, and passes first.
- An end whose other end takes no more does not read on.
- When one end is over, the other ends as well. What the first had sent arrives, unless it is not read in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

BUFFER_BYTES = 1 << 18
CLOSE_WITHIN_S = 2.0
MOST_LINE_BYTES = 512


class End(asyncio.Protocol):
    """One side of a connection; begins alone, may read a line, and is joined to another."""

    def __init__(self, on_begin: Callable[[End], None], on_end: Callable[[End], None]) -> None:
        self.is_over = False
        self.waits = False
        """The other end takes no more, so this one does not read."""
        self._on_begin, self._on_end = on_begin, on_end
        self._transport: asyncio.Transport | None = None
        self._other: End | None = None
        self._before = bytearray()
        """What came before there was another end."""
        self._waiter: asyncio.Future[None] | None = None
        self._abort: asyncio.TimerHandle | None = None

    @property
    def is_joined(self) -> bool:
        return self._other is not None

    @property
    def kept_bytes(self) -> int:
        """What the other side has not taken yet; of an open end."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return len(self._before) + (self._transport.get_write_buffer_size() if self._transport and is_open else 0)

    async def line(self) -> str:
        """The first line; what came of it if the connection ends before, or if it is too long."""
        while not self.is_over and b"\n" not in self._before and len(self._before) < MOST_LINE_BYTES:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        line, _, self._before = self._before.partition(b"\n")
        return line[:MOST_LINE_BYTES].decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        # uvloop's transports raise on a write after the end.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def join(self, other: End) -> None:
        """From now on both are one connection."""
        self._other, other._other = other, self
        for end in (self, other):
            # First, because what is passed may stop it again.
            end.read_on()
        for end in (self, other):
            end._theirs().write(bytes(end._before))
            end._before.clear()
            if end.is_over:
                end._theirs().close()

    def close(self) -> None:
        """What was written arrives, unless the other side does not read it in time."""
        if self._transport is None or self._abort is not None:
            return
        self._abort = asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self.abort)
        self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def certified_names(self) -> set[str]:
        """The names in the certificate of the other side."""
        shown = self._transport.get_extra_info("peercert") if self._transport is not None else None
        return {value for kind, value in (shown or {}).get("subjectAltName", ()) if kind == "DNS"}

    def wait(self) -> None:
        """Read no more until `read_on`."""
        if self._transport is not None and not self._transport.is_closing():
            self.waits = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.waits = False
            self._transport.resume_reading()

    # ---- events of the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance check: uvloop's transports are not subclasses of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._on_begin(self)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)
            return
        self._before += data
        if len(self._before) > BUFFER_BYTES:
            self.wait()
        self._wake()

    def eof_received(self) -> None:
        """The transport closes itself."""
        self._end_other()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        self._transport = None
        self._on_end(self)
        if self._abort is not None:
            self._abort.cancel()
        self._end_other()
        self._wake()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.wait()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.read_on()

    # ----

    def _theirs(self) -> End:
        assert self._other is not None, "an end passes nothing on before it is joined"
        return self._other

    def _end_other(self) -> None:
        if self._other is not None:
            self._other.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
