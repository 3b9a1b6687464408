"""The connections that a tunnel joins: data that arrives at one end is written to the other, without a task in between.

A call to another host passes two tunnels in each direction, so the cost of a piece counts four times.

Invariants:
- Data that arrives before an end is joined is kept, up to one buffer, and is passed on first.
- An end stops reading while its other end cannot write.
- When one end closes, the other closes too. Data that the first had sent still arrives, unless it is not read in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

BUFFER_BYTES = 1 << 18
CLOSE_WITHIN_S = 2.0
MOST_LINE_BYTES = 512


class End(asyncio.Protocol):
    """One side of a connection. It begins alone, may read a line, and is then joined to another end."""

    def __init__(self, on_begin: Callable[[End], None], on_end: Callable[[End], None]) -> None:
        self.is_over = False
        self.waits = False
        """The other end cannot write now, so this one does not read."""
        self._on_begin, self._on_end = on_begin, on_end
        self._transport: asyncio.Transport | None = None
        self._other: End | None = None
        self._before = bytearray()
        """Data that arrived before this end was joined."""
        self._waiter: asyncio.Future[None] | None = None
        self._abort: asyncio.TimerHandle | None = None

    @property
    def is_joined(self) -> bool:
        return self._other is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes that the other side has not accepted yet. The end must be open."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return len(self._before) + (self._transport.get_write_buffer_size() if self._transport and is_open else 0)

    async def line(self) -> str:
        """The first line; only its beginning if the connection ends early, or if the line is too long."""
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
        """Join two ends to one connection."""
        self._other, other._other = other, self
        for end in (self, other):
            # First, because passing on data may pause reading again.
            end.read_on()
        for end in (self, other):
            end._theirs().write(bytes(end._before))
            end._before.clear()
            if end.is_over:
                end._theirs().close()

    def close(self) -> None:
        """Close. Data that was written still arrives, unless the other side does not read it in time."""
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
        """Stop reading until `read_on`."""
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
