"""Provides the blocking client for notebooks and plain scripts.

Invariants:
- The client runs in an event loop in its own thread, so it works from any thread, even where a loop is already running
  (as in a notebook).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from agentrl.client.client import CONNECT_S, Client
from agentrl.errors import UsageError
from agentrl.protocol.rows import AnyRow

T = TypeVar("T")


class BlockingClient:
    """Has every method of `Client`; each blocks and returns the result. Close it, or use it in a `with` block."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="agentrl-client", daemon=True)
        self._thread.start()
        try:
            self._do(client.__aenter__())
        except BaseException:
            self._stop_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self._do(found(*args, **kwargs))

        return blocking

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._client) if not name.startswith("_"))})

    def follow(self, kinds: tuple[str, ...] = ()) -> Iterator[tuple[str, AnyRow | None]]:
        """Like `Client.follow`: rows, changes and markers, without an end."""
        return self._each(self._client.follow(kinds))

    def watch(self, *names: str) -> Iterator[dict[str, Any]]:
        """Like `Client.watch`: the metrics of each new step, until the run ends."""
        return self._each(self._client.watch(*names))

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                try:
                    yield self._do(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_closed():
                self._do(items.aclose())

    def close(self) -> None:
        """Closes the client. Closing it again does nothing."""
        if not self._loop.is_closed():
            self._do(self._client.__aexit__(None, None, None))
            self._stop_loop()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise UsageError("This client was closed.", hint="Connect again: agentrl.connect(...).")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def connect(
    run: str | None = None,
    *,
    key_file: Path | str | None = None,
    address: str | None = None,
    timeout_s: float = CONNECT_S,
) -> BlockingClient:
    """A blocking client of a run: `agentrl.connect("name").status()`."""
    return BlockingClient(Client.connect(run, key_file=key_file, address=address, timeout_s=timeout_s))


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)
